# SPDX-License-Identifier: Apache-2.0
"""A store that lives through all at once: reads left half-way, checkpoints, other settings, a disk that refuses once.

As `test_raftlog_raft_log_machine`, with what a host does around that: it asks again, with the same call, what the disk
has refused, gives other settings at each opening, holds pins and iterators over everything, and keeps states and
checkpoints of one of the logs in a folder.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, NotFound, Stale, StorageError
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    CostPolicy,
    DeadEntry,
    Entry,
    MissingEntry,
    RaftLog,
    RaftLogStore,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SnapshotFolder,
    StoreOptions,
)
from compactlib.raftlog.errors import LiveIndexMissing, LogStopped
from compactlib.raftlog.model.values import Answer
from compactlib.raftlog.store.pins import Pin
from tests.harness.effort import Effort
from tests.harness.plain_log import PlainLog
from tests.harness.raft_world import KINDS, RaftModel, World, check_log, found_state, store_options
from tests.tools.faults.plan import FailingFiles

MORE = ("checkpoint", "promote", "pin", "unpin", "iterate", "iterate", "finish", "finish", "close", "reclaim", "reopen")
STATES = "b"
"""The log whose states are kept."""


class Again:
    """A log that is asked once more for what the disk has refused, by the same call."""

    def __init__(self, log: RaftLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            given = [[(*row[:2], bytes(row[2])) for row in each] if isinstance(each, Iterator) else each
                     for each in args]
            return asked_again(lambda: found(*given, **options))

        return call


def asked_again(ask: Callable[[], Any]) -> Any:
    """What it answers, at the second time if need be."""
    try:
        return ask()
    except StorageError:
        return ask()


@attrs.define(eq=False)
class HalfRead:
    """An iterator that was left half-way, and how many states the log had then."""

    name: str
    answers: Iterator[Answer]
    since: int


class BusyWorld(World):
    """A store on a disk that refuses one step.

    Args:
        folder: for the store and the states.
        rng: chooses settings.
        files: the disk.
    """

    def __init__(self, folder: Path, rng: random.Random, files: FailingFiles) -> None:
        self._rng, self._files, self._clock = rng, files, ManualClock(1.0)
        self._states = folder / "states"
        self._pins: list[tuple[str, Pin, dict[int, Entry]]] = []
        self._half_read: list[HalfRead] = []
        super().__init__(folder / "store", options=self._other_options())
        self._attach()

    def _other_options(self) -> StoreOptions:
        choose = self._rng.choice
        log = attrs.evolve(
            store_options(self._files).log, clock=self._clock, keep_links_seconds=choose((0.0, 5.0)),
            limits=SegmentLimits(max_entries=choose((1, 2, 4, 9)), max_bytes=choose((60, 300, 5000))),
            policy=choose((SeedPolicy(), SeedPolicy(max_sources=2), RaPolicy(), CostPolicy())))
        return StoreOptions(
            log=log, background=False, max_wal_bytes=choose((200, 900, 5000)), keep_trailing=choose((0, 1, 3, 8)),
            max_unflushed_files=choose((0, 1, 4)), max_queued_bytes=choose((0, 100, 1 << 20)),
            max_memtable_entries=choose((20, 1000)))

    def raw(self, name: str) -> RaftLog:
        """A log itself."""
        found: RaftLog = asked_again(lambda: self.store.log(name))
        return found

    def log(self, name: str) -> Any:
        """A log that is asked again."""
        return Again(self.raw(name))

    def _attach(self) -> None:
        self.states: SnapshotFolder = asked_again(lambda: SnapshotFolder(self._states, files=self._files))
        asked_again(lambda: self.raw(STATES).attach(self.states))

    def open_again(self) -> None:
        """With other settings."""
        self._options = self._other_options()
        self.store = asked_again(lambda: RaftLogStore(self._folder, self._options))
        self._attach()

    def go_on(self) -> None:
        """After a log that has stopped, or a store that could not be closed: with what was promised at least."""
        self._let_go()
        with contextlib.suppress(StorageError, LogStopped):
            self.store.close()
        self.open_again()
        for name, model in self.models.items():
            found = found_state(self.raw(name), model.history, self._promised[name])
            model.change(lambda state, found=found: attrs.evolve(found))  # type: ignore[misc]
            model.history.states[-1] = PlainLog(dict(found.entries), found.snapshot, found.gap)
            model.term += 1
        self.promise()

    def _let_go(self) -> None:
        for half in self._half_read:
            half.answers.close()  # type: ignore[attr-defined]
        self._half_read, self._pins = [], []

    # -- what is done otherwise

    def _snapshot(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        now, is_kept = model.now, log.log_id == STATES
        index = max([held for held in now.entries if held <= max(now.contiguous_through - x % 4, now.snapshot)],
                    default=-1)
        if index < now.snapshot + is_kept or index < 0:
            return
        live = [each for each in now.entries if each <= index and (each * 7 + y) % 3 == 0]
        kept = self._trailing(now, index) | set(live)
        model.change(lambda state: state.record_snapshot(index, kept))
        log.snapshot(index, live, [b"state", b"%d" % index] if is_kept else None)
        self.promise(log.log_id)

    def _trailing(self, now: PlainLog, index: int) -> set[int]:
        kept: set[int] = set()
        while len(kept) < self._options.keep_trailing and index - len(kept) in now.entries:
            kept.add(index - len(kept))
        return kept

    def _install(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        # Of the other log a receiver would put a state beside it.
        if log.log_id != STATES:
            super()._install(log, model, x, y)

    def _flush(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        asked_again(self.store.flush)
        self.promise()

    def _reopen(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        self._pins = []
        self.store.close()
        self.promise()
        self.open_again()

    # -- what is done besides

    def _checkpoint(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        now = model.now
        above = [held for held in now.entries if now.snapshot < held <= now.contiguous_through]
        newest = max((one.index for one in self.states.checkpoints), default=-1)
        if log.log_id == STATES and above and (index := above[-1 - x % min(3, len(above))]) > newest:
            try:
                log.checkpoint(index, [each for each in now.entries if each <= index and (each + y) % 2], [b"state"])
            except Stale:
                # The disk has refused what comes after the switch.
                assert index in {one.index for one in self.states.checkpoints}

    def _promote(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        if log.log_id != STATES:
            return
        index = max(model.now.contiguous_through - x % 3, 0)
        there = self.states.checkpoint_below(index)
        if there is None:
            with contextlib.suppress(NotFound):
                log.promote(index)
            return
        held = model.now.entries.get(there.index)
        if held is None or held.term != there.term:
            try:
                log.promote(index)
            except Stale:
                return
            raise AssertionError(f"checkpoint {there.index} was promoted, and its entry was taken back")
        if not set(there.live) <= model.now.entries.keys():
            # A snapshot below it, taken after it, has let go of what it keeps.
            with pytest.raises(LiveIndexMissing):
                log.promote(index)
            return
        kept = set(there.live) | self._trailing(model.now, there.index)
        model.change(lambda state: state.record_snapshot(there.index, kept))
        assert log.promote(index).index == there.index

    def _pin(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        held = {index: entry for index, entry in model.now.entries.items() if (index + x) % 3 == 0}
        self._pins.append((log.log_id, log.pin(IndexSet.from_sorted(held)), held))

    def _unpin(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        if self._pins:
            self._pins.pop(x % len(self._pins))[1].release()

    def _iterate(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        raw = self.raw(log.log_id)
        answers: Any = raw.entries() if y % 2 else raw.read_many(range(model.now.last + 3))
        for _ in range(x % 4):
            next(answers, None)
        self._half_read.append(HalfRead(log.log_id, answers, len(model.history.states) - 1))

    def _finish(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        if not self._half_read:
            return
        half = self._half_read.pop(x % len(self._half_read))
        states = self.models[half.name].history.states[half.since:]
        try:
            rest = list(half.answers)
        except Closed:
            return
        for answer in rest:
            told = {state.answer(answer.index) for state in states} | {
                DeadEntry(answer.index, state.snapshot) for state in states if answer.index not in state.entries}
            assert answer in told, f"{answer}, and it was never one of {told}"
            assert isinstance(answer, Entry | DeadEntry | MissingEntry)

    def _close(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        self._pins = [pin for pin in self._pins if pin[0] != log.log_id]
        log.close()
        self.promise(log.log_id)
        self._attach()

    def _reclaim(self, log: Any, model: RaftModel, x: int, y: int) -> None:
        self._clock.advance(x % 9)
        log.reclaim()

    def _require_done(self, outcome: Any) -> None:
        error = getattr(outcome, "error", None)
        if error is not None and not isinstance(error, StorageError):
            raise error

    def check(self) -> None:
        """As `World.check`; what is pinned can be read, and the states are those of the row."""
        for name, model in self.models.items():
            check_log(self.raw(name), model.now)
        for _, pin, held in self._pins:
            assert list(pin.entries()) == list(held.values())
        self.store.audit()
        self.states.audit()
        latest, row = self.states.latest(), self.raw(STATES).state
        assert (-1 if latest is None else latest.index) == row.index


def live(seed: int, steps: int, files: FailingFiles) -> tuple[int, int]:
    """One life; how often the disk was changed before the first operation, and until the last."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = BusyWorld(Path(folder), rng, files)
        before = files.count
        for _ in range(steps):
            operation = rng.choice((*KINDS, *MORE)), rng.randrange(2), rng.randrange(100), rng.randrange(100)
            try:
                world.perform(operation)
            except (StorageError, LogStopped, Busy):
                # What is half read keeps what was taken back from being removed.
                world.go_on()
            world.check()
        world.go_on()
        world.store.close()
    return before, files.count


def test_any_life_with_everything_at_once_is_as_the_model_says(effort: Effort) -> None:
    for seed in range(effort(15, 1_000)):
        live(seed, 60, FailingFiles())
