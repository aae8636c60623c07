# SPDX-License-Identifier: Apache-2.0
"""A key-value store whose values stay in a Raft log: in memory there is only key -> index.

    python examples/raft_kv.py FOLDER [--keys 200] [--commands 20000]

Writes values over and over, takes snapshots, lets a worker compact, opens everything again and reads it.
A snapshot holds the keys and where their values are; the values are the log's live entries, so a snapshot costs what
the keys cost. The group here has one member. A Raft implementation serves a larger group: it decides the commits and
calls `KvMachine.apply`; `send_snapshot` brings a snapshot to another member (`examples/far_behind.py`).
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterable

import attrs

from compactlib.errors import CorruptData
from compactlib.files import LocalFiles
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    Entry,
    LogCompactionReport,
    LogCompactionWorker,
    RaftLog,
    StateReader,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.policy import plan_clump
from examples.kv_machine import Command, Delete, KvMachine, Put, Rewrite, decode_command, encode_command


class KvStore:
    """The only member of a group: each synced entry is committed.

    Args:
        folder: of the log; created if absent.
        options: of the log.
        with_worker: compact in a thread of its own; else only when `compact` is called.
    """

    def __init__(self, folder: str, options: StoreOptions | None = None, *, with_worker: bool = True) -> None:
        files = LocalFiles() if options is None else options.log.files
        if not os.path.isdir(folder):
            files.make_folder(folder)
            files.sync_folder(os.path.dirname(os.path.abspath(folder)))
        # A damaged live set is replaced by one from the machine's state.
        options = attrs.evolve(options or StoreOptions(), machine_of=lambda _: KvMachine())
        self.log: RaftLog = open_log(os.path.join(folder, "log"), options)
        if with_worker:
            self.log.attach(lambda log: LogCompactionWorker(log))
        self.machine = KvMachine()
        self.term = max(self.log.last_term or 0, 1)
        self._restore()

    def _restore(self) -> None:
        if self.log.state.index >= 0:
            with self.log.open_state() as state:
                self.installed(state)
        self.catch_up()

    def installed(self, state: StateReader) -> None:
        """Take the state of a snapshot that is in force, from here or from another member."""
        machine = KvMachine()
        machine.restore(state.pieces())
        machine.begin_after(state.manifest.index)
        self.machine = machine

    def catch_up(self) -> None:
        """Apply the entries of the log above the applied index."""
        for index in range(self.machine.applied + 1, self.log.last_index + 1):
            entry = self.log.read(index)
            assert isinstance(entry, Entry), entry
            self.machine.apply(entry)

    def write(self, commands: Iterable[Command]) -> None:
        """Carry out commands, durably: one sync for all."""
        first = self.log.last_index + 1
        self.log.append_run(first, self.term, [encode_command(command) for command in commands])
        self.log.sync()
        self.catch_up()

    def put(self, key: str, value: bytes) -> None:
        """Give a key a value."""
        self.write([Put(key, value)])

    def delete(self, key: str) -> None:
        """Take a key away.

        Raises:
            NotFound: there is no such key.
        """
        self.machine.place_of(key)
        self.write([Delete(key)])

    def get(self, key: str) -> bytes:
        """A key's value, read from the log.

        Raises:
            NotFound: there is no such key.
        """
        place = self.machine.place_of(key)
        entry = self.log.read(place)
        if not isinstance(entry, Entry):
            raise CorruptData(path="the log", offset=0, index=place, expected=f"the value of {key!r}",
                              found=repr(entry))
        command = decode_command(entry.payload)
        assert isinstance(command, Put), command
        return command.value

    def items(self) -> dict[str, bytes]:
        """Everything, by key."""
        return {key: self.get(key) for key in sorted(self.machine.places)}

    def snapshot(self) -> None:
        """Take a snapshot of all applied entries; the worker frees the entries that it leaves dead."""
        if self.machine.applied <= self.log.state.index:
            return
        self.log.snapshot(self.machine.applied, self.machine.live_set(), self.machine.snapshot())

    def compact(self) -> LogCompactionReport:
        """Compact now, in this thread."""
        return self.log.compact(policy=self.log.policy)

    def clump(self, max_runs: int) -> IndexSet:
        """Write scattered old values again at the head, so that the live set has at most `max_runs` runs."""
        scattered = plan_clump(self.machine.live_set(), max_runs)
        self.write(self.rewrites(scattered))
        return scattered

    def rewrites(self, scattered: IndexSet) -> list[Rewrite]:
        """Return the commands to propose for these entries. Values that others write before the commands apply stay."""
        # An entry that has died since is not written again.
        alive = [entry for entry in self.log.read_many(list(scattered)) if isinstance(entry, Entry)]
        return [Rewrite(command.key, command.value, entry.index) for entry in alive
                if isinstance(command := decode_command(entry.payload), Put)]

    def close(self) -> None:
        """Let the log go."""
        self.log.close()

    def __enter__(self) -> KvStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--commands", type=int, default=20_000)
    arguments = parser.parse_args()
    rng = random.Random(1)
    expected: dict[str, bytes] = {}
    with KvStore(arguments.folder) as store:
        for start in range(0, arguments.commands, 500):
            batch: list[Command] = []
            for number in range(start, min(start + 500, arguments.commands)):
                key, value = f"key {rng.randrange(arguments.keys)}", b"value %d " % number * 20
                batch.append(Put(key, value))
                expected[key] = value
            store.write(batch)
            if start % 5000 == 0:
                store.snapshot()
        store.snapshot()
        store.log.flush()
        print(store.compact())
        again = store.clump(max_runs=max(arguments.keys // 10, 1))
        print(f"{len(again)} entries written again")
        store.machine.audit()
    with KvStore(arguments.folder) as store:
        assert store.items() == expected
        print(f"{len(expected)} keys read back from {store.log!r}")


if __name__ == "__main__":
    main()
