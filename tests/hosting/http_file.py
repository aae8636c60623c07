# SPDX-License-Identifier: Apache-2.0
"""A scheduler in an SQLite file, over HTTP: `python -m tests.hosting.http_file FILE PORT`.

It says `serving` once it listens, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from compactlib.hosting.http.application import SchedulerApplication
from compactlib.kv import SqliteStore
from compactlib.scheduler import StoredScheduler
from tests.harness.asgi import running
from tests.hosting.workload import CONFIG


async def serve(scheduler: StoredScheduler, port: int) -> None:
    """Serve until standard input ends."""
    async with running(SchedulerApplication(scheduler), port=port):
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


def main(path: str, port: str) -> None:
    """Open the store, and serve."""
    with contextlib.closing(SqliteStore(path)) as kv, contextlib.closing(StoredScheduler(kv, CONFIG)) as scheduler:
        asyncio.run(serve(scheduler, int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
