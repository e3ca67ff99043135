"""Static files for machines and tools in the region, so that nothing is downloaded twice."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from werkzeug.security import safe_join
from werkzeug.utils import redirect, send_file
from werkzeug.wrappers import Request, Response


class Mirror:
    """WSGI application below ``prefix``: files with ranges and ETags, directories as lists of links.

    The lists are what ``uv pip --find-links`` and ``pip`` read.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        return self._answer(request)(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response("the mirror is read-only\n", status=405)
        joined = safe_join(str(self._directory), request.path.removeprefix(self._prefix))
        path = Path(joined) if joined else None
        if path is None or not path.exists():
            return Response(f"{request.path} is not in the mirror\n", status=404)
        if path.is_dir():
            return _listing(path) if request.path.endswith("/") else redirect(request.path + "/", 301)
        return send_file(path, request.environ, mimetype="application/octet-stream", conditional=True)


def _listing(directory: Path) -> Response:
    names = sorted(child.name + ("/" if child.is_dir() else "") for child in directory.iterdir())
    links = "".join(f'<a href="{quote(name)}">{escape(name)}</a><br>\n' for name in names)
    return Response(f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n", mimetype="text/html")
