# SPDX-License-Identifier: Apache-2.0
"""A follower in a process of its own: it listens for snapshots and compacts all the while. Started by the tests.

    python -m tests.raftlog.replication.snapshot_follower FOLDER

Prints its port, then one line for each transfer that ends; stops when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading

from compactlib.hosting import SnapshotServer
from compactlib.hosting.transfer.receiving import ReceivingLog
from compactlib.outcome import Done, Failed
from examples.raft_kv import KvStore


def say(line: str) -> None:
    """To whoever started this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def serve(store: KvStore) -> None:
    """Until the input ends."""
    stopping = threading.Event()

    def compact() -> None:
        while not stopping.wait(0.02):
            store.log.flush()
            store.compact()

    thread = threading.Thread(target=compact)
    thread.start()
    try:
        async with SnapshotServer(listen=("127.0.0.1", 0)) as server:
            log = server.add(store.log, store.snapshots, term=store.term, applied=lambda: store.machine.applied,
                             installed=store.installed)
            say(str(server.address[1]))
            told = asyncio.create_task(tell(log))
            await asyncio.to_thread(sys.stdin.read)
            told.cancel()
    finally:
        stopping.set()
        thread.join()


async def tell(log: ReceivingLog) -> None:
    """One line for each transfer."""
    while True:
        outcome = await log.next_outcome()
        fields = {"index": outcome.stats.index, "attempts": outcome.stats.attempts} if isinstance(outcome, Done) else \
            {"error": str(outcome.error) if isinstance(outcome, Failed) else outcome.reason}
        say(json.dumps({"outcome": type(outcome).__name__, **fields}))


if __name__ == "__main__":
    with KvStore(sys.argv[1]) as kv:
        asyncio.run(serve(kv))
