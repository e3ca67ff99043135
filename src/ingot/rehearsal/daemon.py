"""The one process behind a local region: the AWS APIs, the metadata service and the machines.

``ingot local up`` starts it inside the region's network namespace and cgroup. It is ready when
``<runtime>/daemon.ready`` exists, ends cleanly on SIGTERM or SIGINT, and logs to stderr, one JSON object a
line.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from typing import Any

from werkzeug.serving import BaseWSGIServer, make_server

from ingot.rehearsal import base
from ingot.rehearsal.config import Settings, SettingsError

log = logging.getLogger(__name__)

HTTP_PORT = 80


class JsonFormatter(logging.Formatter):
    """One log line: time, level, where it comes from, text."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # our own log says which call it was
    logging.getLogger("botocore").setLevel(logging.WARNING)


def serve(settings: Settings) -> None:
    """Serve until a signal comes.

    Raises:
        StateError: the saved books cannot be read.
    """
    # Imported late: moto takes a second or two, and mistakes in the settings should show at once.
    from moto.moto_server.werkzeug_app import MotoRequestHandler

    from ingot.rehearsal.api import service as api
    from ingot.rehearsal.api.region import Scale
    from ingot.rehearsal.control import Control
    from ingot.rehearsal.emulation import Emulation
    from ingot.rehearsal.machines import NspawnHost

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())

    # What it builds reaches the archive as commands in the region do.
    host = NspawnHost(settings, emulation=Emulation(settings, wrap=Control(settings).command))
    service = api.build(
        host,
        state=settings.state,
        mirror=settings.mirror,
        bases=base.offered(settings),
        scale=Scale(vcpus=settings.cpu_scale, memory=settings.memory_scale),
        region_name=settings.region,
    )
    api.expect_resume(service.region)

    def server(address: Any, application: Any) -> BaseWSGIServer:
        made = make_server(
            str(address), HTTP_PORT, application, threaded=True, request_handler=MotoRequestHandler
        )
        threading.Thread(target=made.serve_forever, name=f"http {address}", daemon=True).start()
        return made

    # The metadata service first: machines that are started again ask it while they boot.
    servers = [
        server(settings.imds_address, service.metadata),
        server(settings.endpoint_address, service.endpoint),
    ]
    running = host.resume()
    api.after_resume(service.region, running, host.known())
    ready = settings.runtime / "daemon.ready"
    ready.write_text(json.dumps({"endpoint": settings.endpoint_url, "instances": running}) + "\n")
    log.info("ready: %s, %d machines started again", settings.endpoint_url, len(running))

    stopping.wait()
    log.info("stopping")
    ready.unlink(missing_ok=True)
    servers[1].shutdown()  # no new calls; the metadata service stays for machines that shut down
    service.close()
    host.close()
    servers[0].shutdown()
    log.info("stopped")


def main() -> int:
    set_up_logging()
    try:
        serve(Settings.from_environment())
    except SettingsError as error:
        log.error("%s", error)
        return 2
    except Exception as error:
        log.exception("the daemon ends: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
