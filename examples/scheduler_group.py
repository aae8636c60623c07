# SPDX-License-Identifier: Apache-2.0
"""One node of a scheduler that several nodes replicate, and that answers workers over HTTP.

    python -m examples.scheduler_group ADDRESS PORT NODES FOLDER

ADDRESS is the node's own in the Raft group, PORT where it answers HTTP, NODES a JSON object from each node's address in
the group to its URL. It prints `serving` once it listens, and ends with its standard input. A worker is a `Worker` with
`SchedulerClient(urls)`: it follows the leader, also when that is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvicorn

from compactlib.scheduler import LevelConfig, Scheduler, SchedulerApplication, SchedulerConfig
from examples.raft_command_log import RaftCommandLog

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2), LevelConfig(max_blocks=3)), lease_seconds=10.0)
QUICK: dict[str, Any] = {"raftMinTimeout": 0.4, "raftMaxTimeout": 0.9, "appendEntriesPeriod": 0.05,
                         "connectionRetryTime": 0.2}


async def serve(host: Scheduler, nodes: dict[str, str], port: int) -> None:
    """Answer HTTP until standard input ends."""
    server = uvicorn.Server(uvicorn.Config(SchedulerApplication(host, nodes=nodes), port=port, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not (server.started or serving.done()):
        await asyncio.sleep(0.01)
    print("serving", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


def main(address: str, port: str, nodes: str, folder: str) -> None:
    """Join the group, and serve."""
    urls: dict[str, str] = json.loads(nodes)
    peers = [other for other in urls if other != address]
    # The group keeps its own snapshots.
    with RaftCommandLog(address, peers, folder=Path(folder), wait_seconds=5.0, **QUICK) as log, \
            Scheduler(log, None, CONFIG) as host:
        asyncio.run(serve(host, urls, int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
