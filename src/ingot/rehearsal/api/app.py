"""The endpoint: AWS's APIs, the mirror below ``/_mirror/`` and the region's own calls below ``/_ingot/``."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.sax.saxutils import escape

from werkzeug.wrappers import Request, Response

from ingot.rehearsal.api import calls
from ingot.rehearsal.api.mirror import Mirror
from ingot.rehearsal.api.region import Region
from ingot.rehearsal.api.store import Store

log = logging.getLogger(__name__)

MIRROR_PREFIX = "/_mirror/"
CONTROL_PREFIX = "/_ingot/"
READ_ONLY = ("Describe", "Get", "List", "Head", "Decode", "Lookup", "Search")
SPOT_NOTICE_SECONDS = 120


class Endpoint:
    """WSGI application. One AWS call at a time, since moto's books are not made for threads."""

    def __init__(
        self, moto: Any, region: Region, store: Store, recorder: calls.Recorder, mirror: Mirror
    ) -> None:
        self._moto = moto
        self._region = region
        self._store = store
        self._recorder = recorder
        self._mirror = mirror

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path.startswith(MIRROR_PREFIX):
            return self._mirror(environ, start_response)
        if path.startswith(CONTROL_PREFIX):
            return self._control(Request(environ))(environ, start_response)
        if path.startswith("/moto-api"):
            return Response("moto's own API is off here\n", status=404)(environ, start_response)
        return self._aws(environ, start_response)

    def _aws(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # Read before the lock is taken: a slow upload must not stop the others.
        body = _read_body(environ)
        service = calls.signed_service(environ.get("HTTP_AUTHORIZATION", "")) or ""
        method = environ["REQUEST_METHOD"]
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        text = "" if service == "s3" else body.decode("utf-8", "replace")
        path, query = environ.get("PATH_INFO", "/"), environ.get("QUERY_STRING", "")
        name = calls.operation(service, method, path, text, target, query)
        if service and name:
            self._recorder.record(environ.get("HTTP_USER_AGENT", ""), calls.iam_actions(service, name, text))
        started = time.monotonic()
        status, headers, content = self._call(environ, service, name, bool(target))
        number, why = int(status.split()[0]), ""
        if number >= 400:
            content = [b"".join(content)]
            why = f" {error_code(content[0])}"
        spent = (time.monotonic() - started) * 1000
        log.info("aws %s:%s %d%s %.0f ms", service or "-", name or method, number, why, spent)
        start_response(status, headers)
        return content

    def _call(
        self, environ: dict[str, Any], service: str, name: str | None, json_protocol: bool
    ) -> tuple[str, list[tuple[str, str]], Iterable[bytes]]:
        answer: dict[str, Any] = {}

        def remember(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
            answer.update(status=status, headers=headers)

        with self._region.lock:
            try:
                if service == "ec2":
                    self._region.refresh(time.time())
                content = self._moto(environ, remember)
                self._save(service, environ["REQUEST_METHOD"], name)
            except NotImplementedError as error:
                return _error("UnsupportedOperation", f"not in the local EC2: {error}", 400, json_protocol)
            except Exception as error:  # without this a client gets HTML, cannot read it, and tries again
                log.exception("%s:%s", service, name)
                return _error("InternalError", f"{type(error).__name__}: {error}", 500, json_protocol)
        return answer["status"], answer["headers"], content

    def _save(self, service: str, method: str, name: str | None) -> None:
        """Before a changing call is answered: what a client was told must outlive a kill of this process."""
        if service == "s3":
            if method not in ("GET", "HEAD"):
                self._store.save_s3_soon()
        elif name is None or not name.startswith(READ_ONLY):
            self._store.save()

    def _control(self, request: Request) -> Response:
        parts = request.path.removeprefix(CONTROL_PREFIX).split("/")
        if parts == ["ready"]:
            return Response(json.dumps({"ready": True}), mimetype="application/json")
        if len(parts) == 2 and parts[0] == "spot-notice" and request.method == "POST":
            return self._spot_notice(parts[1])
        return Response(f"{request.path}: no such call\n", status=404)

    def _spot_notice(self, instance_id: str) -> Response:
        """Two minutes until the instance is taken back, as the metadata service announces it."""
        with self._region.lock:
            for instance in self._region.instances():
                if instance.id == instance_id:
                    deadline = datetime.now(UTC) + timedelta(seconds=SPOT_NOTICE_SECONDS)
                    instance.spot_notice = deadline.strftime("%Y-%m-%dT%H:%M:%SZ")
                    return Response(instance.spot_notice + "\n")
        return Response(f"no instance {instance_id}\n", status=404)


def moto_application() -> Any:
    """moto's WSGI application with our EC2 in it."""
    from moto.ec2 import urls
    from moto.ec2.models import ec2_backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    from ingot.rehearsal.api.backend import LocalBackend
    from ingot.rehearsal.api.responses import LocalResponse

    ec2_backends.backend = LocalBackend
    urls.url_paths["{0}/"] = LocalResponse.dispatch
    return DomainDispatcherApplication(create_backend_app)


def error_code(body: bytes) -> str:
    """AWS's code in an error answer, for the log; of XML and JSON protocols."""
    found = re.search(rb'<Code>([^<]+)</Code>|"__type": *"([^"]+)"', body)
    return (found[1] or found[2]).decode() if found else "no code"


def _read_body(environ: dict[str, Any]) -> bytes:
    if environ.get("wsgi.input_terminated"):
        body = environ["wsgi.input"].read()
    else:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    environ["CONTENT_LENGTH"] = str(len(body))
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    return bytes(body)


def _error(
    code: str, message: str, status: int, json_protocol: bool
) -> tuple[str, list[tuple[str, str]], Iterable[bytes]]:
    """An error that SDKs can read, so that they show it instead of retrying."""
    request_id = os.urandom(16).hex()
    if json_protocol:
        mimetype = "application/x-amz-json-1.1"
        body = json.dumps({"__type": code, "message": message})
    else:
        mimetype = "text/xml"
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
            f"<Code>{code}</Code><Message>{escape(message)}</Message>"
            f"</Error></Errors><RequestID>{request_id}</RequestID></Response>"
        )
    data = body.encode()
    reason = {400: "Bad Request", 500: "Internal Server Error"}[status]
    headers = [("Content-Type", mimetype), ("Content-Length", str(len(data)))]
    return f"{status} {reason}", headers, [data]
