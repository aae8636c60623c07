# SPDX-License-Identifier: Apache-2.0
"""A log against a plain dictionary: everything that a host may do to it, in any order, with readers in between."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactlib.clock import ManualClock, SystemClock
from compactlib.errors import InvalidInput, Stale
from compactlib.executors import LocalExecutor
from compactlib.raftlog import (
    DeadEntry,
    DropDead,
    Entry,
    LogOptions,
    LogPolicy,
    LogReader,
    MissingEntry,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.errors import LiveAboveSnapshot, LiveIndexMissing
from tests.harness.plain_log import PlainLog, Told, told

POLICIES: dict[str, LogPolicy] = {"seed": SeedPolicy(max_sources=3),
                                  "pairs": SeedPolicy(max_sources=2, reclaim_fraction=0.2)}
payloads = st.sampled_from([b"", b"a", b"payload of some length", b"x" * 70])


@attrs.define(eq=False)
class Held:
    """An earlier reader: the state at its opening, and the later writes."""

    then: PlainLog
    kind: str
    what: Any
    written_from: int = 1 << 64
    written: set[Entry] = attrs.field(factory=set)

    def note(self, entry: Entry) -> None:
        self.written_from = min(self.written_from, entry.index)
        self.written.add(entry)

    def may_be(self, index: int, now: PlainLog) -> list[Told]:
        """Return the allowed answers for an index: the present one, or any earlier one if it was truncated since."""
        answer = now.answer(index)
        if index < self.written_from or isinstance(answer, DeadEntry):
            return [answer]
        return [answer, self.then.answer(index), *self.ever(index)]

    def may_still_be(self, index: int, now: PlainLog) -> list[Told]:
        """Return the same for readers without the later snapshots."""
        taken_back = self.ever(index) if index >= self.written_from else []
        return [now.answer(index), self.then.answer(index), *taken_back]

    def ever(self, index: int) -> list[Told]:
        return [MissingEntry(index), *(entry for entry in self.written if entry.index == index)]


class LogMachine(RuleBasedStateMachine):
    """Tiny segments, so that each few steps begin a new one."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.scratch = tempfile.TemporaryDirectory(prefix="compactlib-machine-", dir=memory)
        self.folder = Path(self.scratch.name) / "log"
        self.model = PlainLog()
        self.clock = ManualClock(SystemClock().now())
        self.held: list[Held] = []
        self.leases: list[Any] = []

    @initialize(max_entries=st.integers(1, 5), max_bytes=st.sampled_from([1, 60, 1000]),
                max_open=st.sampled_from([1, 128]))
    def create(self, max_entries: int, max_bytes: int, max_open: int) -> None:
        self.options = LogOptions(limits=SegmentLimits(max_entries=max_entries, max_bytes=max_bytes), clock=self.clock,
                                  max_open_segments=max_open)
        self.log = SegmentLog(self.folder, self.options)

    # -- writing

    def write(self, index: int, payload: bytes) -> None:
        term = len(self.model.entries) + 1
        self.log.append([(index, term, payload)])
        self.model.append(index, term, payload)
        for held in self.held:
            held.note(self.model.entries[index])

    @rule(count=st.integers(1, 6), payload=payloads)
    def append(self, count: int, payload: bytes) -> None:
        for _ in range(count):
            self.write(self.model.last + 1, payload)

    @rule(gap=st.integers(1, 9), payload=payloads)
    def append_behind_a_gap(self, gap: int, payload: bytes) -> None:
        self.write(self.model.last + 1 + gap, payload)

    @rule(data=st.data(), payload=payloads)
    def overwrite(self, data: st.DataObject, payload: bytes) -> None:
        self.write(data.draw(st.integers(self.model.snapshot + 1, self.model.last + 1)), payload)

    @rule(count=st.integers(0, 7))
    def extend(self, count: int) -> None:
        rows = [(self.model.last + 1 + number, 7, b"extended") for number in range(count)]
        self.log.append(Entry(*row) if row[0] % 2 else row for row in rows)
        for row in rows:
            self.model.append(*row)
            for held in self.held:
                held.note(Entry(*row))

    @rule()
    def sync(self) -> None:
        self.log.sync()

    @precondition(lambda self: self.model.snapshot >= 0)
    @rule(back=st.integers(0, 3))
    def append_below_the_snapshot(self, back: int) -> None:
        with pytest.raises(InvalidInput):
            self.log.append([(max(self.model.snapshot - back, 0), 99, b"refused")])

    @rule(index=st.sampled_from([-1, 1 << 64]))
    def append_what_cannot_be(self, index: int) -> None:
        with pytest.raises(InvalidInput):
            self.log.append([(index, 1, b"refused")])

    # -- snapshots and compactions

    @rule(data=st.data(), beyond=st.sampled_from([0, 0, 0, 5]))
    def record_snapshot(self, data: st.DataObject, beyond: int) -> None:
        lowest = max(self.model.snapshot, 0)
        index = data.draw(st.integers(lowest, max(self.model.last, lowest))) + beyond
        below = [each for each in self.model.entries if each <= index]
        live = sorted(data.draw(st.sets(st.sampled_from(below)))) if below else []
        self.log.snapshot(index, live)
        self.model.record_snapshot(index, live)

    @rule(data=st.data())
    def record_a_snapshot_that_cannot_be(self, data: st.DataObject) -> None:
        index = self.model.last + 1
        wrong = data.draw(st.integers(0, index + 1).filter(lambda each: each not in self.model.entries))
        with pytest.raises(LiveAboveSnapshot if wrong > index else LiveIndexMissing):
            self.log.snapshot(index, [wrong])
        if self.model.snapshot > 0:
            with pytest.raises(Stale):
                self.log.snapshot(self.model.snapshot - 1, ())

    @rule(policy=st.sampled_from([*sorted(POLICIES), "drop", "rule"]), workers=st.sampled_from([1, 1, 1, 2]),
          is_planned=st.booleans())
    def compact(self, policy: str, workers: int, is_planned: bool) -> None:
        chosen = DropDead() if policy == "drop" else POLICIES.get(policy)
        plan = self.log.plan(chosen)
        report = (self.log.compact(plan, executor=LocalExecutor(workers)) if is_planned else
                  self.log.compact(policy=chosen, executor=LocalExecutor(workers)))
        assert report.is_empty == plan.is_empty, (plan, report)
        assert not report.failed
        if not self.leases and not self.held:
            # Overwritten files are removed at the sync of the overwrite, leased files at the next reclaim.
            self.log.sync()
            self.log.reclaim()
            files = [name for name in os.listdir(self.folder)
                     if name.endswith(".segment") and not os.path.islink(self.folder / name)]
            # One more than is listed: the newest, if nothing was appended to it yet.
            assert len(files) - len(self.log.refs) in (0, 1)

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.log.reclaim()

    # -- reading

    @rule(data=st.data())
    def read_some(self, data: st.DataObject) -> None:
        indexes = sorted(data.draw(st.sets(st.integers(0, self.model.last + 2), max_size=12)))
        assert [self.log.read(index) for index in indexes] == [self.model.answer(index) for index in indexes]
        assert [answer for _, answer in told(self.log.read_many(indexes))] == [
            self.model.answer(index) for index in indexes]

    @rule(first=st.integers(-1, 60), last=st.integers(-1, 60))
    def read_a_range(self, first: int, last: int) -> None:
        assert list(self.log.entries(first, last)) == [
            entry for index, entry in self.model.entries.items() if first <= index <= last]

    @rule()
    def read_everything(self) -> None:
        self.model.check(self.log)
        if self.model.entries:
            assert self.log.last_index >= 0
            assert self.log.last_index >= max(self.model.entries)

    @rule()
    def another_process_reads(self) -> None:
        self.log.sync()
        with LogReader(self.folder) as reader:
            self.model.check(reader)

    @rule(kind=st.sampled_from(["plan", "entries", "reader"]))
    def begin_to_read(self, kind: str) -> None:
        if kind == "plan":
            what: Any = self.log.read_many(range(self.model.last + 3))
            assert dict(told([next(what)])) == {0: self.model.answer(0)}
        elif kind == "entries":
            what = self.log.entries()
        else:
            self.log.sync()
            what = LogReader(self.folder, max_open_segments=1)
        held = Held(copy.copy(self.model), kind, what)
        self.held.append(held)
        if kind == "entries" and held.then.entries:
            assert next(what) == next(iter(held.then.entries.values()))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish_reading(self, data: st.DataObject) -> None:
        self.finish(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    def finish(self, held: Held) -> None:
        what = held.what
        if held.kind == "plan":
            for index, answer in told(what):
                assert answer in held.may_be(index, self.model), (index, answer)
        elif held.kind == "reader":
            self.finish_reader(what, held)
        else:
            self.finish_entries(what, held)

    def finish_reader(self, reader: LogReader, held: Held) -> None:
        with reader:
            for index in range(held.then.last + 1):
                assert reader.read(index) in held.may_still_be(index, self.model)
            for entry in reader.entries():
                assert entry in held.may_still_be(entry.index, self.model)
            self.log.sync()
            reader.refresh()
            self.model.check(reader)

    def finish_entries(self, entries: Iterator[Entry], held: Held) -> None:
        rest = list(entries)
        given = {entry.index: entry for entry in rest}
        assert list(given) == sorted(given)
        assert len(given) == len(rest)
        passed = next(iter(held.then.entries), -1)
        for index, entry in given.items():
            assert index > passed
            assert entry in held.may_still_be(index, self.model)
        for index, entry in held.then.entries.items():
            if index > passed and index < held.written_from and self.model.answer(index) == entry:
                assert given[index] == entry

    @rule()
    def take_a_lease(self) -> None:
        self.leases.append(self.log.lease())

    @rule()
    def give_back_a_lease(self) -> None:
        if self.leases:
            self.leases.pop(0).release()

    @rule()
    def reopen(self) -> None:
        while self.held:
            self.finish(self.held.pop())
        while self.leases:
            self.leases.pop().release()
        self.log.close()
        self.log = SegmentLog(self.folder, self.options)
        assert self.log.torn_entries == 0
        assert not self.log.recovery
        self.model.check(self.log)

    @invariant()
    def audits(self) -> None:
        if hasattr(self, "log"):
            self.log.audit()
            some = max(self.model.last, 0)
            assert self.log.read(some) == self.model.answer(some)

    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                self.reopen()
                self.log.close()
        finally:
            self.scratch.cleanup()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(stateful_step_count=30)
