# SPDX-License-Identifier: Apache-2.0
"""A host of blob stores with one HTTP route, by which an operator requests a compaction of a running store.

    python examples/blob_host.py FOLDER

`POST /compact/photos` requests it, and the answer has the outcome of the request. The library listens on no socket: the
host has the route, and decides who may use it; here that is every process of this machine. A store with little room
left is compacted without a request.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from compactlib.blobstore import BlobStore, BlobStoreConfig
from compactlib.errors import NotFound
from compactlib.manager import CompactionManager, OnRequest


class Host(ThreadingHTTPServer):
    """Serves the one route on loopback.

    Args:
        manager: takes the requests.
    """

    daemon_threads = True

    def __init__(self, manager: CompactionManager) -> None:
        super().__init__(("127.0.0.1", 0), Route)
        self.manager = manager


class Route(BaseHTTPRequestHandler):
    """`POST /compact/NAME`."""

    def do_POST(self) -> None:
        """Request a compaction: 202 if the request was taken, else 404."""
        assert isinstance(self.server, Host)
        manager = self.server.manager
        prefix, _, name = self.path.rpartition("/")
        try:
            if prefix != "/compact":
                raise NotFound(f"there is no {self.path}")
            manager.request(name)
        except NotFound as error:
            self._answer(404, {"error": str(error)})
        else:
            self._answer(202, {"store": name, "error": ""})

    def _answer(self, status: int, content: dict[str, str]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(folder: Path) -> None:
    """Keep a store, its manager and the route until standard input ends."""
    config = BlobStoreConfig(capacity_bytes=1 << 24, segment_bytes=1 << 20, deleted_retention_seconds=0,
                             journal_max_entries=0, max_blob_bytes=1 << 17, durability="interval")
    with BlobStore(folder / "photos", config) as store:
        for number in range(160):
            store.put(f"photo {number}", bytes(1 << 16))
        for number in range(120):
            store.delete(f"photo {number}")
        with CompactionManager([OnRequest()]) as manager, Host(manager) as host:
            manager.add("photos", store)
            serving = Thread(target=host.serve_forever)
            serving.start()
            print(f"http://127.0.0.1:{host.server_port}", flush=True)
            sys.stdin.read()
            host.shutdown()
            serving.join()
            manager.wait_until_idle()
            print(store.status())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
