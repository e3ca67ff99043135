"""Measures what a baked image saves: from the launch of an instance to the first right token.

    bench_boot.py

Side by side on the local EC2, with the same commands: an instance of the baked image, and one of the image
that it is baked from, on which site.yml installs all of it first, as a machine would that sets itself up when
it boots. Then the first of them stopped and started again. Writes docs/bench-boot.json, the page
docs/bench-boot.md and its plot.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from bench_node import ALONE, INGOT, commit, machine, parsed
from ingot import image_inputs
from ingot.rehearsal import cli as local
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import settings_of_running
from ingot.rehearse import EXPECTED, Rehearsal
from ingot.rehearse_target import TARGETS
from ingot.table import Strict
from steps import ROOT, ToolError, fail, run, seconds
from venvs import uv

NAME = "bench-boot"
BAKED, AT_BOOT, AGAIN = "baked", "installed at boot", "baked, started again"
LAUNCH, CONFIGURE, START = "launch", "install, configure, first answer", "start, first answer"
GOAL = 0.1  # of what installing at boot takes
VARIABLES = {**ALONE, "vllm_compiler": False, "serving_enforce_eager": True}

DATA = ROOT / "docs/bench-boot.json"
PAGE = ROOT / "docs/bench-boot.md"
PLOT = ROOT / "docs/bench-boot.svg"

ASK = """
import json, ssl, sys, time, urllib.request
url, key, body = json.load(sys.stdin)
request = urllib.request.Request(url, json.dumps(body).encode(),
                                 {"Content-Type": "application/json", "Authorization": "Bearer " + key})
unchecked = ssl._create_unverified_context()
end = time.monotonic() + 600
while time.monotonic() < end:
    try:
        with urllib.request.urlopen(request, timeout=60, context=unchecked) as answer:
            if "Paris" in answer.read().decode():
                sys.exit(0)
    except OSError:
        pass
    time.sleep(0.1)
sys.exit("no right answer in 600 s")
"""


class Run(Strict):
    """One way in one round: seconds by phase."""

    round: int
    way: str
    phases: dict[str, float]

    @property
    def whole(self) -> float:
        return sum(self.phases.values())


class Results(Strict):
    """All rounds, and what they were run on."""

    date: str
    commit: str
    machine: str
    runs: list[Run]

    def ratios(self, way: str) -> list[float]:
        """Of what installing at boot took in the same round."""
        others = {one.round: one.whole for one in self.runs if one.way == AT_BOOT}
        return [one.whole / others[one.round] for one in self.runs if one.way == way and one.round in others]

    def median(self, way: str, phase: str) -> float:
        return statistics.median([one.phases[phase] for one in self.runs if one.way == way] or [0.0])


class Bench:
    """One instance at a time of a cluster, in a region that has the image."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.ec2 = rehearsal.control.ec2

    def images(self) -> dict[str, str]:
        """The image that was baked, and a copy of the one that it was baked from, tagged like one of ours."""
        found = self.ec2.describe_images(
            Owners=["self"], Filters=[{"Name": f"tag:{image_inputs.TAG}", "Values": ["*"]}]
        )["Images"]
        baked = max(found, key=lambda image: image["CreationDate"])
        tags = {tag["Key"]: tag["Value"] for tag in baked["Tags"]}
        plain = tags["ingot:base-image"]
        here = self.ec2.meta.region_name
        copy = self.ec2.copy_image(SourceImageId=plain, SourceRegion=here, Name="ingot-x86-plain")["ImageId"]
        self.ec2.create_tags(Resources=[copy], Tags=[{"Key": "ingot:image", "Value": "x86"}])
        self.ec2.modify_image_attribute(ImageId=copy, ImdsSupport={"Value": "v2.0"})
        return {BAKED: baked["ImageId"], AT_BOOT: copy}

    def playbook(self, name: str, **variables: object) -> None:
        self.rehearsal.playbook(name, **VARIABLES, **variables)

    def first(self, image_id: str) -> dict[str, float]:
        """A new instance, until its first right token."""
        phases = timed(LAUNCH, lambda: self.playbook("playbooks/launch.yml", launch_image_id=image_id))
        return phases | timed(CONFIGURE, lambda: self.playbook("site.yml"))

    def again(self) -> dict[str, float]:
        """The same, stopped and started: nobody configures it."""
        filters = [
            {"Name": "tag:ingot:cluster", "Values": [self.rehearsal.cluster.name]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        (group,) = self.ec2.describe_instances(Filters=filters)["Reservations"]
        node = [group["Instances"][0]["InstanceId"]]
        self.ec2.stop_instances(InstanceIds=node)
        self.ec2.get_waiter("instance_stopped").wait(InstanceIds=node, WaiterConfig={"Delay": 1})

        def start() -> None:
            self.ec2.start_instances(InstanceIds=node)
            self.ask()

        return timed(START, start)

    def ask(self) -> None:
        """Ask until the answer is right."""
        from ingot.report import question

        where, cluster = self.rehearsal.gateway(), self.rehearsal.cluster
        given = [
            f"{where.url}/v1/chat/completions",
            cluster.key_file.read_text().strip(),
            question(cluster.model),
        ]
        control = self.rehearsal.control
        subprocess.run(
            control.command([sys.executable, "-c", ASK]), input=json.dumps(given), text=True, check=True
        )

    def end(self) -> None:
        self.rehearsal.playbook("playbooks/destroy.yml", destroy_confirm=self.rehearsal.cluster.name)


def timed(phase: str, what: Callable[[], None]) -> dict[str, float]:
    started = time.monotonic()
    what()
    return {phase: round(time.monotonic() - started, 1)}


def measure(bench: Bench, rounds: int) -> Iterator[Run]:
    """Each way once a round."""
    images = bench.images()
    for number in range(1, rounds + 1):
        for way, image_id in images.items():
            yield Run(round=number, way=way, phases=bench.first(image_id))
            if way == BAKED:
                yield Run(round=number, way=AGAIN, phases=bench.again())
            bench.end()


def page(results: Results) -> str:
    """docs/bench-boot.md."""
    lines = [
        "# From the launch of an instance to the first right token",
        "",
        "Written by `make bench-boot`; do not edit. Native x86-64 on the local EC2, with a mirror on the same"
        " machine: what is downloaded comes at once, which flatters the instance that installs at boot.",
        "",
        f"- {results.date}, commit `{results.commit}`, {results.machine}",
        f"- rounds: {len({one.round for one in results.runs})}; one node, `serving_mode: vllm`, eager;"
        " medians",
        "- installed at boot: the plain image that the other one is baked from, and the same `site.yml`",
        "",
        "| | " + " | ".join((LAUNCH, CONFIGURE, START)) + " | all, s | of installing at boot |",
        "|---|---|---|---|---|---|",
    ]
    for way in (AT_BOOT, BAKED, AGAIN):
        of = [one for one in results.runs if one.way == way]
        phases = [
            f"{results.median(way, phase):.1f}" if phase in of[0].phases else ""
            for phase in (LAUNCH, CONFIGURE, START)
        ]
        whole = statistics.median([one.whole for one in of])
        share = statistics.median(results.ratios(way))
        said = (
            "" if way == AT_BOOT else f"{share:.2f} (goal {GOAL}: {'reached' if share <= GOAL else 'missed'})"
        )
        lines.append(f"| {way} | {' | '.join(phases)} | {whole:.1f} | {said} |")
    return "\n".join([*lines, "", f"![phases]({PLOT.name})", ""])


def plot(results: Results) -> None:
    """Bars of phases."""
    import matplotlib as mpl  # the group `bench`, which nothing else needs

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "ingot"  # the same results give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 2.2), layout="constrained")
    ways = (AGAIN, BAKED, AT_BOOT)
    left = [0.0] * len(ways)
    for phase in (LAUNCH, CONFIGURE, START):
        widths = [
            results.median(way, phase)
            if any(phase in one.phases for one in results.runs if one.way == way)
            else 0.0
            for way in ways
        ]
        axes.barh(ways, widths, left=left, label=phase)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set(xlabel="seconds")
    axes.legend()
    figure.savefig(PLOT, metadata={"Date": None})
    pyplot.close(figure)


@contextmanager
def prepared() -> Iterator[Bench]:
    """A region with the image; removed however this ends."""
    os.environ.update(INGOT_LOCAL_NAME=NAME, INGOT_CLUSTER=NAME)
    try:
        target = TARGETS["x86"].with_extra(VARIABLES)
        rehearsal = Rehearsal(settings_of_running(Settings.from_environment()), target)
        rehearsal.bring_up()
        rehearsal.bake()
        yield Bench(rehearsal)
    except EXPECTED as error:
        raise ToolError(local.failure(error)) from error
    finally:
        subprocess.run([INGOT, "local", "down", "--purge"], check=False)


def write(runs: Sequence[Run]) -> None:
    """Data, page and plot, of the rounds in which every way was gone."""
    whole = [
        one
        for one in runs
        if {AT_BOOT, BAKED, AGAIN} <= {other.way for other in runs if other.round == one.round}
    ]
    if not whole:
        return
    results = Results(date=f"{datetime.now(UTC):%Y-%m-%d}", commit=commit(), machine=machine(), runs=whole)
    DATA.write_text(results.model_dump_json(indent=1) + "\n")
    PAGE.write_text(page(results))
    plot(results)
    print(f"written: {PAGE.relative_to(ROOT)}")


def main() -> int:
    """Measure, and write what there is when it ends, however it does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options = parsed(parser)
    runs: list[Run] = []
    status = 0
    try:
        run([uv(), "sync", "--quiet", "--locked", "--inexact", "--group", "bench"])  # what draws the plots
        with prepared() as bench:
            for one in measure(bench, options.rounds):
                runs.append(one)
                print(f"round {one.round}/{options.rounds}, {one.way}: {seconds(one.whole)}", flush=True)
    except ToolError as problem:
        status = fail(problem)
    except KeyboardInterrupt:
        status = 130
    write(runs)
    return status


if __name__ == "__main__":
    sys.exit(main())
