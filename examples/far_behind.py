# SPDX-License-Identifier: Apache-2.0
"""Followers that are too far behind get their leader's snapshot, over streams that the host opens; one is killed.

    python examples/far_behind.py FOLDER

Three processes on this machine: a leader, whose log holds the values that its snapshot names, and two followers with
empty logs. The library listens on no socket: the leader has the server, each follower connects, and both hand over the
stream. The second follower is killed in the middle of the state. Its next process continues at that place.

Nothing here says who talks, which is for one machine alone. Between machines the host opens its streams with TLS, and
asks for certificates.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

from compactlib.raftlog import Entry, RaftLog, StoreOptions, open_log, receive_snapshot, send_snapshot
from compactlib.raftlog.errors import RefusalReason, TransferBroken, TransferRefused

KEYS, WRITES, CHUNK_BYTES = 2_000, 5_000, 4096
DIES_AT_BYTES = 96 << 10
"""How much the follower that is killed has read: its entries, and a part of the state."""


class Machine:
    """Where the last value of each key is; the values stay in the log, and are its live entries."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.applied = 0

    def apply(self, entry: Entry) -> None:
        """Carry out one write."""
        key, _, _ = entry.payload.decode().partition("=")
        self.places[key] = self.applied = entry.index

    def restore(self, applied: int, state: Iterable[bytes]) -> None:
        """Replace the state by that of a snapshot."""
        self.places, self.applied = json.loads(b"".join(state)), applied


class Member:
    """A log with its snapshots, and the machine that follows it."""

    def __init__(self, folder: str) -> None:
        self.log: RaftLog = open_log(os.path.join(folder, "log"), StoreOptions(background=False))
        self.machine = Machine()
        self.restore()

    def restore(self) -> None:
        """Take the state of the snapshot in force, if there is one that the machine has not."""
        if self.log.state.index > self.machine.applied:
            with self.log.open_state() as state:
                self.machine.restore(state.manifest.index, state.pieces())

    def values(self) -> dict[str, str]:
        """Every key with its value, read from the log."""
        found = {}
        for key, place in sorted(self.machine.places.items()):
            entry = self.log.read(place)
            assert isinstance(entry, Entry), entry
            found[key] = entry.payload.decode().partition("=")[2]
        return found


async def lead(folder: str) -> None:
    """Write, take a snapshot, and send it to each follower that connects, until this process is ended."""
    member = Member(folder)
    member.log.append((index, 1, b"key %d=value %d" % (index % KEYS, index)) for index in range(1, WRITES + 1))
    member.log.sync()
    for entry in member.log.entries():
        member.machine.apply(entry)
    live = sorted(member.machine.places.values())
    member.log.snapshot(member.machine.applied, live, [json.dumps(member.machine.places).encode()])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(TransferBroken, TransferRefused):
            await send_snapshot((reader, writer), member.log, term=1, chunk_bytes=CHUNK_BYTES)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Mortal:
    """A reader that kills its process after a number of bytes."""

    def __init__(self, reader: asyncio.StreamReader, dies_at: int) -> None:
        self._reader, self._left = reader, dies_at

    async def readexactly(self, n: int) -> bytes:
        """As that of the reader."""
        self._left -= n
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await self._reader.readexactly(n)


async def follow(folder: str, port: int, dies_at: int) -> None:
    """Get the snapshot, restore the machine by it, and print what this member has then."""
    member = Member(folder)
    resumed_at = 0
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        source = Mortal(reader, dies_at) if dies_at else reader
        with contextlib.closing(writer):
            try:
                report = await receive_snapshot((source, writer), member.log,
                                                last_applied=member.machine.applied)
                resumed_at = report.resumed_at
            except TransferRefused as refused:
                if refused.reason is not RefusalReason.ALREADY_APPLIED:
                    raise
            except TransferBroken:
                # Connect again: the received part of the state is kept.
                continue
        member.restore()
        break
    print(json.dumps({"applied": member.machine.applied, "resumed_at": resumed_at, "values": member.values()}))
    member.log.close()


def main() -> None:
    """Run the processes, and compare the followers' states."""
    if len(sys.argv) > 2:
        name, folder, *rest = sys.argv[1:]
        asyncio.run(lead(folder) if name == "lead" else follow(folder, int(rest[0]), int(rest[1])))
        return
    folder = sys.argv[1]
    for name in ("leader", "first", "second"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    with subprocess.Popen([sys.executable, __file__, "lead", os.path.join(folder, "leader")],
                          stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        port = leader.stdout.readline().strip()

        def follower(name: str, dies_at: int) -> subprocess.CompletedProcess[str]:
            return subprocess.run([sys.executable, __file__, "follow", os.path.join(folder, name), port, str(dies_at)],
                                  stdout=subprocess.PIPE, text=True, check=False)

        first = json.loads(follower("first", 0).stdout)
        print(f"first follower: {len(first['values'])} values, everything up to {first['applied']}")
        killed = follower("second", DIES_AT_BYTES)
        print(f"second follower: ended by signal {-killed.returncode}")
        second = json.loads(follower("second", 0).stdout)
        print(f"second follower: goes on behind {second['resumed_at']} bytes of the state")
        print(f"both have the same: {first['values'] == second['values']}")
        leader.kill()


if __name__ == "__main__":
    main()
