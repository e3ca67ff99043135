"""The module model_store against a server that lies, stalls, redirects and breaks off."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from program import load

ROOT = Path(__file__).parents[2]
CONTENT = os.urandom(1 << 16)
FILE = {
    "path": "sub/weights.safetensors",
    "size": len(CONTENT),
    "sha256": hashlib.sha256(CONTENT).hexdigest(),
}
OTHER = {"path": "config.json", "size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load(ROOT / "plugins/modules/model_store.py")


@pytest.fixture
def run(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    defaults = {
        "root": str(tmp_path / "store"),
        "model": "a/b",
        "revision": "1",
        "files": [FILE],
        "url": None,
        "token": None,
        "local": False,
        "reserve": 0,
        "timeout": 5,
        "retries": 2,
        "everything": False,
    }

    def call(state: str, *, check_mode: bool = False, **parameters: Any) -> dict[str, Any]:
        result: dict[str, Any] = module.run(defaults | {"state": state} | parameters, check_mode=check_mode)
        return result

    return call


class Server:
    """Serves CONTENT; ``plan`` holds what to do with the next requests, then all is well."""

    def __init__(self) -> None:
        self.plan: list[str] = []
        self.seen: list[tuple[str, str | None, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                server.seen.append((self.path, wanted, self.headers.get("Authorization")))
                step = server.plan.pop(0) if server.plan else "well"
                if step.isdigit():
                    self.send_error(int(step))
                    return
                if step == "redirect":
                    self.send_response(302)
                    self.send_header("Location", f"http://localhost:{server.port}/elsewhere")
                    self.end_headers()
                    return
                start = (
                    int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and step != "no-ranges" else 0
                )
                body = CONTENT[start:]
                body = {"lie": b"x" * len(body), "long": body + b"x"}.get(step, body)
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if step == "break" else body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/weights?signature=secret"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def published(tmp_path: Path) -> Path:
    return tmp_path / "store/a/b" / str(FILE["path"])


def test_from_nothing_to_sealed_and_then_no_change(run: Any, server: Server, tmp_path: Path) -> None:
    assert run("planned")["missing"] == [FILE]
    assert run("fetched", url=server.url)["changed"]
    assert run("sealed")["changed"]
    assert published(tmp_path).read_bytes() == CONTENT
    assert published(tmp_path).stat().st_mode & 0o777 == 0o644
    assert published(tmp_path).parent.stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "store/.incoming/a--b").exists()
    assert run("planned")["missing"] == []
    assert not run("sealed")["changed"]
    assert not run("verified")["changed"]


def test_a_broken_download_goes_on_where_it_broke(run: Any, server: Server, tmp_path: Path) -> None:
    server.plan = ["break", "500"]
    run("fetched", url=server.url)
    assert published(tmp_path).read_bytes() == CONTENT
    assert [seen[1] for seen in server.seen] == [None, *[f"bytes={len(CONTENT) // 2}-"] * 2]


def test_a_server_without_ranges_starts_again(run: Any, server: Server, tmp_path: Path) -> None:
    server.plan = ["break", "no-ranges"]
    run("fetched", url=server.url)
    assert published(tmp_path).read_bytes() == CONTENT


def test_a_lie_is_refused_with_both_hashes_and_never_visible(
    run: Any, module: ModuleType, server: Server, tmp_path: Path
) -> None:
    server.plan = ["lie"]
    with pytest.raises(module.StoreError) as refusal:
        run("fetched", url=server.url)
    found = hashlib.sha256(b"x" * len(CONTENT)).hexdigest()
    assert f"expected sha256 {FILE['sha256']}, found {found}" in str(refusal.value)
    assert "sub/weights.safetensors of a/b" in str(refusal.value)
    assert "secret" not in str(refusal.value), "a signed link must not reach a log"
    assert not published(tmp_path).exists()
    run("fetched", url=server.url)
    assert published(tmp_path).read_bytes() == CONTENT, "what was refused must not be taken up again"


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (["404"], "404"),
        (["403"], "gated or private"),
        (["long"], "longer than the catalogue says"),
        (["500"] * 3, "500"),
    ],
)
def test_what_cannot_be_fetched_says_why(
    run: Any, module: ModuleType, server: Server, plan: list[str], words: str
) -> None:
    server.plan = list(plan)
    with pytest.raises(module.StoreError, match=words):
        run("fetched", url=server.url)
    assert len(server.seen) == len(plan), "an answer that is final is not asked for again"


def test_a_token_does_not_follow_a_redirect(run: Any, server: Server) -> None:
    server.plan = ["redirect"]
    run("fetched", url=server.url, token="hf_secret")
    assert [seen[2] for seen in server.seen] == ["Bearer hf_secret", None]


def test_check_mode_fetches_nothing(run: Any, server: Server, tmp_path: Path) -> None:
    assert run("fetched", url=server.url, check_mode=True)["changed"]
    assert not run("sealed", check_mode=True)["changed"]
    assert server.seen == []
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("model", ["../x", "/etc", "a/../b", "a//b", ".hidden"])
def test_an_id_that_leaves_the_store_is_refused(run: Any, module: ModuleType, model: str) -> None:
    with pytest.raises(module.StoreError, match="would leave the store"):
        run("planned", model=model)


def test_a_file_that_leaves_the_store_is_refused(run: Any, module: ModuleType) -> None:
    with pytest.raises(module.StoreError, match="would leave the store"):
        run("sealed", files=[FILE | {"path": "../../etc/passwd"}])


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(run: Any, module: ModuleType) -> None:
    with pytest.raises(
        module.StoreError, match=r"the disk of .*/store is too small for a/b: 0\.1 MiB are to"
    ):
        run("planned", reserve=1 << 60)


def test_planted_changes_are_found(run: Any, module: ModuleType, server: Server, tmp_path: Path) -> None:
    run("fetched", url=server.url)
    run("sealed")
    with published(tmp_path).open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"planted")
    with pytest.raises(module.StoreError, match=f"expected sha256 {FILE['sha256']}, found"):
        run("verified")
    assert run("planned")["missing"] == [FILE]
    published(tmp_path).write_bytes(CONTENT[:-1])
    with pytest.raises(module.StoreError, match=f"expected {len(CONTENT)} bytes, found {len(CONTENT) - 1}"):
        run("verified")
    published(tmp_path).unlink()
    with pytest.raises(module.StoreError, match="is missing"):
        run("verified")


def test_a_change_that_hides_its_time_is_found_when_everything_is_hashed(
    run: Any, module: ModuleType, server: Server, tmp_path: Path
) -> None:
    run("fetched", url=server.url)
    run("sealed")
    status = published(tmp_path).stat()
    published(tmp_path).write_bytes(b"y" * len(CONTENT))
    os.utime(published(tmp_path), ns=(status.st_atime_ns, status.st_mtime_ns))
    run("verified")
    with pytest.raises(module.StoreError, match="expected sha256"):
        run("verified", everything=True)


def test_files_that_came_with_a_copy_are_hashed_not_fetched(run: Any, tmp_path: Path) -> None:
    published(tmp_path).parent.mkdir(parents=True)
    published(tmp_path).write_bytes(CONTENT)
    assert run("planned")["missing"] == []
    assert run("sealed")["changed"]


def test_another_revision_takes_the_place_of_the_first(run: Any, server: Server, tmp_path: Path) -> None:
    incoming = Path(run("planned")["incoming"])
    run("fetched", url=server.url)
    run("sealed")
    incoming.mkdir(parents=True)
    (incoming / "config.json").write_text("{}")
    run("fetched", files=[OTHER], local=True)
    assert run("sealed", files=[OTHER], revision="2")["changed"]
    assert not published(tmp_path).exists()
    assert (tmp_path / "store/a/b/config.json").read_text() == "{}"
