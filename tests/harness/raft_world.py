# SPDX-License-Identifier: Apache-2.0
"""A store of logs driven by a list of operations, and a plain model with the expected content."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CorruptData
from compactlib.files import Files, LocalFiles
from compactlib.raftlog import (
    DropDead,
    Entry,
    LogOptions,
    RaftLog,
    RaftLogStore,
    SegmentLimits,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.errors import GapDetected
from tests.harness.plain_log import History, PlainLog, Told, told
from tests.harness.snapshot_line import transfer

Operation: TypeAlias = tuple[str, int, int, int]
"""Kind, log, and two numbers whose meaning depends on the kind."""

KINDS = ("append", "append", "overwrite", "reset", "sync", "sync", "flush", "snapshot", "snapshot", "install",
         "minor", "major", "reopen")
LOGS = ("a", "b")


def store_options(files: Files | None = None, *, max_wal_bytes: int = 900, background: bool = False,
                  keep_trailing: int = 0) -> StoreOptions:
    """Return options with very small segments and WAL files."""
    log = LogOptions(limits=SegmentLimits(max_entries=4, max_bytes=300), files=LocalFiles() if files is None else files,
                     clock=ManualClock(1.0), keep_links_seconds=0.0)
    return StoreOptions(log=log, max_wal_bytes=max_wal_bytes, background=background, keep_trailing=keep_trailing)


def random_operations(rng: random.Random, count: int) -> list[Operation]:
    """Draw a life of `count` operations."""
    return [(rng.choice(KINDS), rng.randrange(2), rng.randrange(100), rng.randrange(100)) for _ in range(count)]


def in_one_buffer(rows: Iterable[tuple[int, int, bytes]]) -> Iterator[tuple[int, int, bytearray]]:
    """Yield the rows in one reused buffer, as a host may do that reads them one after the other."""
    buffer = bytearray()
    for index, term, payload in rows:
        buffer[:] = payload
        yield index, term, buffer


@attrs.define
class RaftModel:
    """The history of one log.

    Attributes:
        history: its states.
        term: the last term; the bytes of an index in a term never change.
    """

    history: History = attrs.field(factory=History)
    term: int = 1

    @property
    def now(self) -> PlainLog:
        """Return the current state."""
        return self.history.states[-1]

    def change(self, how: Callable[[PlainLog], object]) -> None:
        """Add a state."""
        state = PlainLog(dict(self.now.entries), self.now.snapshot)
        how(state)
        self.history.states.append(state)


def reset_plain(state: PlainLog, last: int) -> None:
    """Truncate everything above `last`."""
    state.entries = {index: entry for index, entry in state.entries.items() if index <= last}


def answers_of(log: RaftLog, indexes: Sequence[int]) -> dict[int, Told]:
    """Return the result of reading each of `indexes` (ascending); all ways to read must agree."""
    single: dict[int, Told] = {}
    for index in indexes:
        try:
            single[index] = log.read(index)
        except CorruptData as error:
            assert error.index == index
            single[index] = "damaged"
    assert dict(told(log.read_many(indexes))) == single
    return single


def check_log(log: RaftLog, state: PlainLog) -> None:
    """Require that the log has this state, by all ways to read."""
    indexes = range(state.last + 3)
    assert answers_of(log, indexes) == {index: state.answer(index) for index in indexes}
    assert list(log.entries()) == list(state.entries.values())
    assert log.last_index == state.last
    assert log.first_index == min(state.entries, default=None)
    for index, entry in state.entries.items():
        assert log.term_of(index) == entry.term
    log.audit()


def found_state(log: RaftLog, history: History, acknowledged: int) -> PlainLog:
    """Return the state of a log, which has to be at least as new as the acknowledged state."""
    found = {entry.index: entry for entry in log.entries()}, log.state.index
    for state in history.states[acknowledged:]:
        if (state.entries, state.snapshot) == found:
            return state
    held = [(entry.index, entry.term) for entry in found[0].values()]
    raise AssertionError(f"log {log.log_id} holds {held} with the snapshot at {found[1]}, which it never did after "
                         f"{history.states[acknowledged]} was acknowledged")


class World:
    """A store and its models.

    Args:
        folder: the store's.
        files: the disk.
        acknowledge: called with the number of acknowledged states of each log.
        models: of an existing store in the folder.
        options: of the store.
    """

    def __init__(self, folder: Path, files: Files | None = None,
                 acknowledge: Callable[[dict[str, int]], object] = lambda promised: None,
                 models: dict[str, RaftModel] | None = None, options: StoreOptions | None = None) -> None:
        self._folder = folder
        self._options = store_options(files) if options is None else options
        self._acknowledge = acknowledge
        self.models = {name: RaftModel() for name in LOGS} if models is None else models
        self._promised = dict.fromkeys(LOGS, 0)
        self.store = RaftLogStore(folder, self._options)

    def log(self, name: str) -> RaftLog:
        """Return one of the two logs."""
        return self.store.log(name)

    def promise(self, *names: str) -> None:
        """Acknowledge the current state of these logs (default: all)."""
        self._promised.update({name: len(self.models[name].history.states) - 1 for name in names or LOGS})
        self._acknowledge(dict(self._promised))

    def run(self, operations: Iterable[Operation]) -> None:
        """Perform all operations."""
        for operation in operations:
            self.perform(operation)

    def perform(self, operation: Operation) -> None:
        """Perform one operation; it does nothing if it does not fit the state."""
        kind, which, x, y = operation
        name = LOGS[which % len(LOGS)]
        getattr(self, f"_{kind}")(self.log(name), self.models[name], x, y)

    def _rows(self, first: int, term: int, count: int, y: int) -> list[tuple[int, int, bytes]]:
        return [(index, term, b"%d in %d " % (index, term) * (y % 7)) for index in range(first, first + count)]

    def _expect(self, model: RaftModel, rows: list[tuple[int, int, bytes]]) -> None:
        def add(state: PlainLog) -> None:
            for row in rows:
                state.append(*row)

        # The model changes first: a life that ends in the middle may have done the change. So everywhere below.
        model.change(add)

    def _put(self, log: RaftLog, model: RaftModel, rows: list[tuple[int, int, bytes]]) -> None:
        self._expect(model, rows)
        log.append(in_one_buffer(rows) if rows[0][0] % 2 else rows)

    def _append(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        last = model.now.last
        if last >= 0:
            with pytest.raises(GapDetected, match=f"append from {last + 1} on"):
                log.append(self._rows(last + 2 + x % 3, model.term, 1 + x % 5, y))
        self._put(log, model, self._rows(last + 1, model.term, 1 + x % 5, y))

    def _overwrite(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        """Overwrite as a follower with a new leader; entries that are sent twice change nothing."""
        now = model.now
        first = max(now.last - x % 6, now.snapshot + 1, 0)
        if now.entries and now.snapshot < 0:
            first = max(first, min(now.entries) + 1)
        prev_term = log.term_of(first - 1) or 0
        model.term += 1
        rows = self._rows(first, model.term, 1 + y % 3, y)
        self._expect(model, rows)
        for part in (rows, rows[:1]):
            answer = log.append_entries(first - 1, prev_term, in_one_buffer(part) if first % 2 else part)
            assert answer.success
            assert answer.match_index == part[-1][0]
        self.promise(log.log_id)

    def _reset(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        last = max(model.now.last - x % 9, model.now.snapshot)
        if last < 0 or last >= model.now.last:
            return
        # Rewritten entries are other entries.
        model.term += 1
        model.change(lambda state: reset_plain(state, last))
        log.reset(last)

    def _sync(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        log.sync()
        self.promise(log.log_id)

    def _flush(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        self.store.flush()
        self.promise()

    def _snapshot(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        now = model.now
        if now.last < 0:
            return
        index = max(now.last - x % 4, now.snapshot, 0)
        # A snapshot ends at an existing entry, or at the end of the snapshot before.
        index = max([held for held in now.entries if held <= index], default=now.snapshot)
        index = max(index, now.snapshot)
        if index < 0:
            return
        live = [each for each in now.entries if each <= index and (each * 7 + y) % 3 == 0]
        kept = set(live)
        for each in range(index, index - self._options.keep_trailing, -1):
            if each not in now.entries:
                break
            kept.add(each)
        model.change(lambda state: state.record_snapshot(index, kept))
        log.snapshot(index, live)
        self.promise(log.log_id)

    def _install(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        """Receive a leader's snapshot, with some live entries above the applied index."""
        now = model.now
        applied = max(now.last - x % 5, now.snapshot)
        index = applied + 3 + y % 5
        model.term += 1
        sent = [each for each in range(applied + 1, index + 1) if (each + x) % 3 == 0]
        rows = [Entry(each, model.term, b"live %d" % each) for each in range(applied + 1, index + 1)]

        def install(state: PlainLog) -> None:
            state.entries, state.snapshot = {each.index: each for each in rows if each.index in sent}, index

        model.change(install)
        with TemporaryDirectory() as folder, open_log(folder, log_id=log.log_id) as leader:
            leader.append(rows)
            leader.snapshot(index, sent, [b"the state of %d" % index])
            ended = transfer(leader, log, applied=applied, term=model.term)
        if not ended.is_well:
            raise ended.received
        self.promise(log.log_id)

    def _reset_to(self, log: RaftLog, model: RaftModel, last: int) -> None:
        if last < model.now.last:
            model.change(lambda state: reset_plain(state, last))
            log.reset(last)

    def take_back(self) -> None:
        """Truncate every log to its snapshot."""
        for name, model in self.models.items():
            model.term += 1
            self._reset_to(self.log(name), model, model.now.snapshot)

    def _minor(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        log.compact(policy=DropDead())

    def _major(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        log.compact(policy=log.policy)

    def _reopen(self, log: RaftLog, model: RaftModel, x: int, y: int) -> None:
        self.store.close()
        self.promise()
        self.store = RaftLogStore(self._folder, self._options)

    def check(self) -> None:
        """Require that every log has the state of its model."""
        for name, model in self.models.items():
            check_log(self.log(name), model.now)
        self.store.audit()

    def close(self) -> None:
        """Sync and close."""
        self.store.close()
        self.promise()


def check_after_crash(models: dict[str, RaftModel]) -> Callable[[Path, Sequence[Any]], None]:
    """Make a check for the crash harness: the store opens, has all acknowledged states, and works."""
    checked = itertools.count()

    def check(folder: Path, acknowledged: Sequence[dict[str, int]]) -> None:
        promised = acknowledged[-1] if acknowledged else dict.fromkeys(models, 0)
        found: dict[str, PlainLog] = {}
        with RaftLogStore(folder, store_options()) as store:
            for name, model in models.items():
                found[name] = found_state(store.log(name), model.history, promised[name])
                check_log(store.log(name), found[name])
            store.audit()
        again = {name: RaftModel(History([copy.copy(state)]), models[name].term + 100) for name, state in found.items()}
        world = World(folder, models=again)
        if next(checked) % 2:
            # In every second state, everything above the snapshot is truncated before the next write.
            world.take_back()
            world.run([("install", 0, 2, 1), ("flush", 0, 0, 0)])
            world.check()
        world.run([("append", 0, 1, 3), ("append", 1, 4, 2), ("flush", 0, 0, 0), ("major", 0, 0, 0),
                   ("reopen", 0, 0, 0)])
        world.check()
        world.close()

    return check
