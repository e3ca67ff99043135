"""A gateway as its clients see it, on loopback: one key, one model, perhaps a certificate."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from certificate import Issued

KEY = "sk-client-canary-0123456789"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
ANSWER = {"choices": [{"message": {"content": "Paris."}}]}


def served(directory: Path, leaf: Issued, *issuers: Issued) -> str:
    """The file that a user gives: certificate, chain, key."""
    path = directory / "gateway.pem"
    path.write_text("".join((leaf.public, *(issuer.public for issuer in issuers), leaf.private())))
    return str(path)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = self.headers["Authorization"] == f"Bearer {KEY}" and asked["model"] == MODEL
        text = json.dumps(ANSWER if known else {"error": "no"}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def gateway(path: str = "") -> Iterator[int]:
    """One that answers, with TLS where a certificate is given; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if path:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
