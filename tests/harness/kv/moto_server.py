# SPDX-License-Identifier: Apache-2.0
"""moto's own server, one request at a time: `python -m tests.harness.kv.moto_server PORT`.

moto's own command serves threads concurrently over unguarded state: two conditional puts may both find that the item is
absent, and a failing transaction restores a copy of the whole table, undoing concurrent writes. DynamoDB and S3 do not,
so this server has a lock. It also keeps connections open, for speed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"


class _OneAtATime:
    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            return list(self._app(environ, start_response))


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), _OneAtATime(), threaded=True, request_handler=_Handler)
