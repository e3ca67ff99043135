"""The verdict on an image, row by row, from what was found on its clones at each moment.

``found`` holds what playbooks/verify.yml has gathered, by moment: ``fresh`` (the clone before it is
configured), ``sister`` (another clone), ``unbooted`` (the tree that nobody has booted), ``first`` and
``second`` (the clone as it serves, after each of its two boots). Each of these has the answers of
playbooks/files/evidence.py, hygiene.py, surface.py and canary.py that were asked there. ``gate`` has the
rows of ``ingot.gate`` on the engine after the second boot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ingot import graphs, report
from ingot.verify import inside, sbom
from ingot.verify.rows import Row, held, left_out, some

Found = Mapping[str, Mapping[str, Any]]

BOOTS = {"first": "first boot", "second": "second boot"}
STEPS = "steps"
MOMENTS = ("fresh", "sister", "unbooted", "first", "second")
GIB = 1 << 30
LEAST_FREE = GIB
#: What tells one machine from another, and stays for as long as it lives.
LASTING = ("machine_id", "ssh_host_keys", "tls", "ray_token")
#: What no boot may have from another.
FRESH_EACH_BOOT = ("boot_id", "ray_session")


def rows(found: Found, tags: Mapping[str, str], ended: str = "") -> list[Row]:
    """All rows. ``ended`` says at which step a run broke off, and why."""
    made = [*_steps(found, ended)]
    for moment, called in BOOTS.items():
        if moment in found:
            made += _boot(called, found[moment])
    made += _identity(found)
    made += _cache(found)
    if "gate" in found:
        made += [Row.model_validate(row) for row in found["gate"]["rows"]]
    else:
        made.append(
            left_out("gate", "nobody asked for it (verify_gate)", "the engine computes what its model says")
        )
    for moment in ("fresh", "unbooted"):
        if moment in found:
            made += _cleanliness(moment, found[moment])
    if "fresh" in found:
        evidence = found["fresh"]["evidence"]
        made.append(_space(evidence["system"]["free_bytes"]))
        made += inside.rows(evidence["inside"], tags, evidence["system"]["kernel"], evidence["machine"])
        if evidence["inside"]["manifest"]:
            made.append(sbom.row(evidence["inside"]))
    return made


def _steps(found: Found, ended: str) -> Iterator[Row]:
    lacking = [moment for moment in MOMENTS if moment not in found]
    limit = "the clone was looked at " + ", ".join(MOMENTS)
    if ended or lacking:
        yield held(STEPS, False, ended or f"nobody looked at: {', '.join(lacking)}", limit)
    else:
        yield held(STEPS, True, "all of them", limit)


def _boot(called: str, found: Mapping[str, Any]) -> Iterator[Row]:
    name = called.replace(" ", "-")
    system = found["evidence"]["system"]
    good = system["state"] == "running" and not system["failed"]
    evidence = (
        f"systemd is {system['state']}; failed: {', '.join(system['failed']) or 'none'}; {system['boot']}"
    )
    yield held(f"{name}-system", good, evidence, "running, no failed unit")
    answer = found.get("answer", {})
    said = report.text_of(answer)
    good = answer.get("status") == 200 and report.ANSWER in said
    evidence = f"status {answer.get('status', 'none')}: {' '.join(said.split())[:200]}"
    yield held(f"{name}-answer", good, evidence, f"{report.QUESTION} -> {report.ANSWER}")


def _space(free: int) -> Row:
    limit = (
        f"{LEAST_FREE // GIB} GiB free on the smallest root volume: room for logs, compiled graphs and keys"
    )
    return held("space-fresh", free >= LEAST_FREE, f"{free / GIB:.1f} GiB free", limit)


# --- identity -----------------------------------------------------------------------------------------------


def _identity(found: Found) -> Iterator[Row]:
    seen = {
        moment: found[moment]["evidence"]["identity"]
        for moment in ("fresh", "sister", "first", "second")
        if moment in found
    }
    if "fresh" in seen:
        builder = found["fresh"]["evidence"]["inside"]["manifest"].get("builder", {})
        yield _apart("identity-builder", seen["fresh"], builder, "the builder")
        yield _complete(seen["fresh"])
    if "fresh" in seen and "sister" in seen:
        yield _apart("identity-sister", seen["fresh"], seen["sister"], "the sister clone")
    if "first" in seen and "second" in seen:
        yield from _between_boots(seen["first"], seen["second"])


def _complete(own: Mapping[str, Any]) -> Row:
    lacking = [name for name in ("machine_id", "ssh_host_keys") if not own.get(name)]
    evidence = (
        f"none: {', '.join(lacking)}" if lacking else f"{len(own['ssh_host_keys'])} host keys, machine id"
    )
    return held("identity-own", not lacking, evidence, "a clone makes its own machine id and host keys")


def _apart(name: str, own: Mapping[str, Any], other: Mapping[str, Any], whose: str) -> Row:
    """Nothing that tells machines apart may be the same; keys are compared one by one."""
    limit = f"nothing in common with {whose}"
    if not other.get("machine_id") and not other.get("ssh_host_keys"):
        return left_out(name, f"nothing is known of {whose}", limit)
    same = [
        word
        for word in ("machine_id", "ray_session", "hostname", "boot_id")
        if own.get(word) and own.get(word) == other.get(word)
    ]
    for word in ("ssh_host_keys", "tls"):
        theirs = set((other.get(word) or {}).values())
        same += [f"{word} {key}" for key, value in (own.get(word) or {}).items() if value in theirs]
    evidence = f"the same: {', '.join(same)}" if same else "machine id, host keys, names: all different"
    return held(name, not same, evidence, limit)


def _between_boots(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Row]:
    changed = [name for name in LASTING if first.get(name) != second.get(name)]
    evidence = f"changed: {', '.join(changed)}" if changed else "machine id, host keys, certificates, token"
    yield held("identity-lasts", not changed, evidence, "the same after both boots")
    stale = [name for name in FRESH_EACH_BOOT if first.get(name) and first[name] == second.get(name)]
    evidence = f"the same: {', '.join(stale)}" if stale else "boot id, and Ray's session where there is one"
    yield held("identity-renews", not stale, evidence, "another after each boot")


# --- the compile cache --------------------------------------------------------------------------------------


def _cache(found: Found) -> Iterator[Row]:
    if "first" not in found or "second" not in found:
        return
    first, second = (found[moment]["evidence"] for moment in BOOTS)
    origins = [graphs.origin("\n".join(evidence["engine_log"])) for evidence in (first, second)]
    limit = "the second start compiles nothing"
    if not any(origins):
        yield left_out("cache-log", "the engine compiles no graphs (enforce_eager)", limit)
        return
    yield held("cache-log", origins[1] == graphs.CACHED, f"first: {origins[0]}; second: {origins[1]}", limit)
    before, after = (evidence["cache"] for evidence in (first, second))
    made = sorted(set(after) - set(before))
    lost = sorted(set(before) - set(after))
    rewritten = sorted(name for name in set(before) & set(after) if before[name] != after[name])
    changes = [
        f"{len(part)} {word}: {some(part, 3)}"
        for part, word in ((made, "new"), (lost, "gone"), (rewritten, "rewritten"))
        if part
    ]
    yield held(
        "cache-files",
        not changes,
        some(changes) or f"{len(after)} files",
        "no file is new, gone or rewritten",
    )


# --- what must not be there ---------------------------------------------------------------------------------


def _cleanliness(moment: str, found: Mapping[str, Any]) -> Iterator[Row]:
    where = {"fresh": "a clone", "unbooted": "the unbooted tree"}[moment]
    for name, what in (
        ("hygiene", "what clones must not inherit"),
        ("surface", "modes, owners, units, ports"),
    ):
        findings = [f"{one['rule']}: {one['path']}: {one['what']}" for one in found[name]["findings"]]
        yield held(
            f"{name}-{moment}", not findings, some(findings) or "no finding", f"{what}: nothing on {where}"
        )
    if canary := found.get("canary"):
        hits = [f"{hit['channel']} in {hit['path']} ({hit['form']})" for hit in canary["hits"]]
        evidence = some(hits) or f"none of {', '.join(canary['channels'])}"
        yield held(f"canary-{moment}", not hits, evidence, f"no secret of the bake on {where}")
    else:
        yield left_out(
            f"canary-{moment}", "baked without a canary, or none was given", "no secret of the bake"
        )
