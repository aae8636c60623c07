# SPDX-License-Identifier: Apache-2.0
"""One node of a group of schedulers that serves HTTP: `python -m tests.hosting.http_node ADDRESS PORT NODES FOLDER`.

NODES is a JSON object from the log's address of each node to its URL. It says `serving` once it listens, and ends with
its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys

from compactlib.hosting import RaftCommandLog, SchedulerHost
from compactlib.hosting.http.application import SchedulerApplication
from compactlib.hosting.http.server import HttpServer
from compactlib.scheduler.fences.token import TokenSealer
from tests.hosting.raft_node import QUICK
from tests.hosting.workload import CONFIG

SEALER = TokenSealer({"k": b"the same on every node"})


async def serve(host: SchedulerHost, nodes: dict[str, str], port: int) -> None:
    """Serve until standard input ends."""
    application = SchedulerApplication(host, sealer=SEALER, nodes=nodes)
    async with HttpServer(application, listen=("127.0.0.1", port)):
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


def main(address: str, port: str, nodes: str, folder: str) -> None:
    """Open the log, and serve."""
    urls: dict[str, str] = json.loads(nodes)
    peers = [other for other in urls if other != address]
    with RaftCommandLog(address, peers, folder=folder, wait_seconds=5.0, **QUICK) as log, \
            SchedulerHost(log, None, CONFIG) as host:
        asyncio.run(serve(host, urls, int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
