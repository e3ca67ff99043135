"""The documents are sound: their commands can be run by tools/docs_run.py, their links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path

import pytest

import ci
import docs_run
from docs_run import Command, missing_line, parse
from ingot.rehearsal import cli as local
from ingot.rehearsal.config import Settings
from ingot.rehearsal.control import Control
from steps import ROOT, ToolError

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+\s+(.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    broken = []
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    return broken


def role_pages() -> list[Path]:
    return sorted((ROOT / "roles").glob("*/README.md"))


@pytest.mark.parametrize(
    "page", [*docs_run.documents(), *role_pages()], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title here\n[a](gone.md) [b](#a-title-here) [c](#nowhere) [d](https://x.example)\n")
    assert broken_links(page) == ["gone.md", "#nowhere"]


@pytest.mark.parametrize("page", docs_run.documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_can_be_run_or_says_why_not(page: Path) -> None:
    steps = {check.name for check in ci.checks()}
    for command in parse(page):
        assert command.kind != "step" or command.note in steps, f"{command.place}: no step {command.note!r}"


def names_to_look_up() -> set[str]:
    """The stable names of refusals and findings, read from the calls that make them."""
    names = set()
    for file in (ROOT / "src/ingot").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            first = (
                node.args[:1] if node.func.id in ("Refusal", "_cause", "refuse", "CertificateError") else []
            )
            cause = [keyword.value for keyword in node.keywords if keyword.arg == "cause"]
            names |= {item.value for item in first + cause if isinstance(item, ast.Constant)}
    return {name for name in names if isinstance(name, str)}


def test_every_refusal_and_finding_can_be_looked_up() -> None:
    page = (ROOT / "docs/troubleshoot.md").read_text()
    names = names_to_look_up()
    assert {"no-head", "missing-library", "no namespaces", "bad-certificate"} <= names
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def poor_meanings(page: str) -> list[str]:
    """Variables of a page's tables whose meaning is no sentence that stands by itself."""
    rows = [re.split(r"(?<!\\)\|", line)[1:4] for line in page.splitlines() if line.startswith("| `")]
    return [
        row[0].strip()
        for row in rows
        if len(row) == 3 and not re.match(r"(?:[A-Z]|ray_serve: ).*( .*){4}", row[2].strip())
    ]


def test_every_variable_says_what_it_means() -> None:
    assert poor_meanings((ROOT / "docs/variables.md").read_text()) == []
    planted = "| `launch_image_id` | `` | or this one |\n| `a` | `x \\| y` |  |\n| `b` | 1 | Its port. |\n"
    assert poor_meanings(planted) == ["`launch_image_id`", "`a`", "`b`"]


def test_the_local_ec2_has_all_its_commands_and_variables_on_its_page() -> None:
    page = (ROOT / "docs/local-ec2.md").read_text()
    named = [
        command.name or getattr(command.callback, "__name__", "") for command in local.app.registered_commands
    ]
    assert "mirror" in named
    assert [name for name in named if not re.search(rf"^\| .*`{name}\b", page, re.MULTILINE)] == []
    settings = Settings.from_environment()
    inside = Control(settings, lambda _: contextlib.nullcontext()).environment()
    assert "AWS_DEFAULT_REGION" in inside
    assert [name for name in inside if f"`{name}`" not in page] == []


def commands(tmp_path: Path, text: str) -> list[Command]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return parse(page)


def test_a_block_is_split_at_its_prompts(tmp_path: Path) -> None:
    found = commands(
        tmp_path,
        "<!-- run: host -->\n```console\n$ echo one \\\n    two\none two\n$ true\n```\n"
        "\n```console\n$ aws x\n```\n",
    )
    assert [(c.text, c.expected, c.kind, c.line) for c in found] == [
        ("echo one \\\n    two", ("one two",), "host", 3),
        ("true", (), "host", 6),
        ("aws x", (), "aws", 10),
    ]


def test_other_blocks_are_left_alone(tmp_path: Path) -> None:
    assert commands(tmp_path, "```yaml\n$ not: a command\n```\n```text\n$ rm x\n```\n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```bash\nrm x\n```\n", "write commands as ```console"),
        ("- x\n\n  ```console\n  $ ls\n  ```\n", "move it to the margin"),
        ("```console\nls\n```\n", "begins with '\\$ '"),
        ("```console\n$ ls\n", "not closed"),
        ("<!-- run: skip() -->\n```console\n$ ls\n```\n", "needs a reason"),
        ("<!-- run: never(no) -->\n```console\n$ ls\n```\n", "runs as one of"),
        ("<!-- run: -->\n```console\n$ ls\n```\n", "unreadable marker"),
    ],
)
def test_a_block_that_would_not_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        commands(tmp_path, text)


@pytest.mark.parametrize(
    ("expected", "output", "missing"),
    [
        (("a", "b"), "a\nx\nb\n", None),
        (("b", "a"), "a\nx\nb\n", "a"),
        (("took ... s",), "it took 4.2 s now\n", None),
        (("...", "took ... min"), "it took 4.2 s now\n", "took ... min"),
        (("a.c",), "abc\n", "a.c"),
    ],
)
def test_output_is_compared_loosely_but_in_order(
    expected: tuple[str, ...], output: str, missing: str | None
) -> None:
    assert missing_line(expected, output) == missing


def run(tmp_path: Path, body: str) -> tuple[int, list[str], list[Command]]:
    page = tmp_path / "page.md"
    skip = "<!-- run: skip(no account) -->\n```console\n$ x\n```\n"
    page.write_text(f"<!-- run: host -->\n```console\n{body}\n```\n\n{skip}")
    skipped: list[Command] = []
    passed, failures = docs_run.run_document(page, skipped)
    return passed, failures, skipped


def test_a_session_keeps_directory_and_variables(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    passed, failures, skipped = run(
        tmp_path, f"$ cd {tmp_path}/sub\n$ export WORD='a b'\n$ pwd; echo $WORD\n{tmp_path}/sub\na b"
    )
    assert (passed, failures) == (3, [])
    assert [command.note for command in skipped] == ["no account"]


def test_commands_for_aws_run_in_the_region_with_its_inventory(tmp_path: Path) -> None:
    text = "ansible-playbook -i inventories/aws site.yml"
    aws, host = (Command(tmp_path, 1, text, (), kind) for kind in ("aws", "host"))
    session = docs_run.Session(tmp_path)
    assert session.argv(aws)[1:5] == ["local", "run", "--", "bash"]
    assert session.argv(aws)[-1] == "ansible-playbook -i inventories/rehearsal site.yml"
    assert (session.argv(host)[0], session.argv(host)[-1]) == ("bash", text)


def test_a_failing_command_ends_the_document(tmp_path: Path) -> None:
    passed, failures, _ = run(tmp_path, f"$ true\n$ false | cat\n$ touch {tmp_path}/later")
    assert passed == 1
    assert failures == [f"{tmp_path}/page.md:4: exit status 1 from: false | cat"]
    assert not (tmp_path / "later").exists()


def test_a_command_that_prints_something_else_fails(tmp_path: Path) -> None:
    passed, failures, _ = run(tmp_path, "$ echo yes\nno")
    assert passed == 0
    assert failures == [f"{tmp_path}/page.md:3: did not print 'no': echo yes"]
