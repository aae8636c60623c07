# SPDX-License-Identifier: Apache-2.0
"""`CompactionSensor`: counts, in memory, what makes a branch worth compacting, and reports it once.

It is one per process and serves any number of repositories. It never blocks and never reads: it is notified of what the
operations of this process come across. What it forgets (when the process ends, or when there are more branches than it
keeps) costs a compaction, never data.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import InvalidInput
from compactlib.report import Table
from compactlib.runtime.lru import Lru
from compactlib.runtime.observe import tell
from compactlib.staging.compaction.sense_policies import AnyOf, BranchPressure, SensePolicy
from compactlib.staging.events import StagingEvents
from compactlib.staging.names import StagingToken
from compactlib.staging.record import BranchRecord

_LOGGER = logging.getLogger("compactlib.staging")

MAX_BUFFER = 1_000_000
"""The most triggers a sensor holds."""


@attrs.frozen
class CompactionTrigger:
    """A branch that should be compacted.

    Attributes:
        repository: whose branch.
        branch: which branch.
        why: the policy's reason.
        pressure: what had been counted since the trigger before.
    """

    repository: str
    branch: str
    why: str
    pressure: BranchPressure


class _Counts:
    """What was counted for one branch, by the newest of its records that was seen.

    Deletes are counted by the token that they went into: a seal keeps them, and they go with their token, by
    whichever commit, compaction or reset. What a listing meets is counted as long as no token goes.
    """

    __slots__ = ("deletes", "listed", "record", "sealed_told", "told")

    def __init__(self, record: BranchRecord) -> None:
        self.record = record
        self.deletes: dict[StagingToken, int] = {}
        self.listed = 0
        # How many deletes and sealed tokens a trigger has reported already.
        self.told: dict[StagingToken, int] = {}
        self.sealed_told = 0

    def see(self, record: BranchRecord) -> None:
        """Forget what is gone, if this record is newer than the one before."""
        before = self.record
        if record.is_outdated_by(before):
            return
        self.record = record
        if record.version < before.version:
            # A slow reader's still, or a branch that was made anew: the next record says which.
            self.deletes, self.told = _those_of(before, self.deletes), _those_of(before, self.told)
        elif record.tokens != before.tokens:
            if not set(before.tokens) <= set(record.tokens):
                self.listed = 0
            self.deletes, self.told = _those_of(record, self.deletes), _those_of(record, self.told)
        self.sealed_told = min(self.sealed_told, len(record.sealed_tokens))

    def add_deletes(self, token: StagingToken, count: int) -> None:
        if token in self.record.tokens:
            self.deletes[token] = self.deletes.get(token, 0) + count

    def tell(self) -> None:
        self.told = dict(self.deletes)
        self.listed = 0
        self.sealed_told = len(self.record.sealed_tokens)

    @property
    def sealed(self) -> int:
        return len(self.record.sealed_tokens)

    @property
    def pressure(self) -> BranchPressure:
        """All that was counted."""
        return BranchPressure(deletes=sum(_those_of(self.record, self.deletes).values()), tombstones_listed=self.listed,
                              sealed_tokens=self.sealed)

    @property
    def news(self) -> BranchPressure:
        """What no trigger has reported."""
        everything = self.pressure
        return attrs.evolve(everything,
                            deletes=everything.deletes - sum(_those_of(self.record, self.told).values()),
                            sealed_tokens=self.sealed if self.sealed > self.sealed_told else 0)


def _those_of(record: BranchRecord, counts: dict[StagingToken, int]) -> dict[StagingToken, int]:
    return {token: counts[token] for token in record.tokens if token in counts}


class CompactionSensor:
    """Counts and triggers. Any thread may call any method; each takes about a microsecond and never waits for another
    thread.

    What is counted of a token goes when the branch names the token no longer: after a commit, a reset, a compaction,
    whichever process did it. A trigger reports what no earlier one has. If the triggers are not taken, the branch's
    next event tries again.

    Args:
        policy: decides; default `AnyOf()`.
        clock: what "now" is to the policy.
        buffer: how many triggers wait to be taken, at most.
        max_branches: how many branches are counted, at most; those that nothing happened on for longest are forgotten.

    Attributes:
        last_error: what the policy or a listener raised last; the reads and writes that were counted go on. Nothing is
            triggered if it was the policy.
        failures: how often it raised.

    Raises:
        InvalidInput: `buffer` or `max_branches` is less than 1.
    """

    def __init__(self, policy: SensePolicy | None = None, *, clock: Clock | None = None, buffer: int = 1000,
                 max_branches: int = 10_000) -> None:
        if not 1 <= buffer <= MAX_BUFFER or max_branches < 1:
            raise InvalidInput(f"a buffer of {buffer} triggers for {max_branches} branches; give at least 1 of each, "
                               f"and a buffer of at most {MAX_BUFFER}")
        self.last_error: Exception | None = None
        self.failures: int = 0
        self._policy: SensePolicy = AnyOf() if policy is None else policy
        self._clock: Clock = SystemClock() if clock is None else clock
        self._triggers: deque[CompactionTrigger] = deque()
        self._buffer = buffer
        self._branches: Lru[tuple[str, str], _Counts] = Lru(max_entries=max_branches)
        self._lock = threading.Lock()
        self._closed = False
        self._listeners: tuple[Callable[[], object], ...] = ()

    def listen(self, listener: Callable[[], object]) -> None:
        """Have it called whenever there is a trigger to take, in the thread that triggered; it must not block.

        What it raises is logged, and breaks no read and no write. Listening again does nothing.
        """
        with self._lock:
            if listener not in self._listeners:
                self._listeners = (*self._listeners, listener)

    def unlisten(self, listener: Callable[[], object]) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each != listener)

    def events(self, repository: str) -> StagingEvents:
        """What the operations of a repository report to."""
        return _RepositoryEvents(self, repository)

    def take(self) -> CompactionTrigger | None:
        """The trigger that has waited longest; `None` if there is none. See `listen`."""
        with self._lock:
            return self._triggers.popleft() if self._triggers else None

    def seed(self, repository: str, branch: str, record: BranchRecord, *,
             tombstones: Mapping[StagingToken, int]) -> None:
        """Count what lies on a branch, so that a start does not begin from nothing; also what a trigger has reported,
        which may have gone unheeded.

        Args:
            repository: whose branch.
            branch: which branch.
            record: its record.
            tombstones: how many each of its tokens holds; what was counted here meanwhile is among them.
        """

        def count(counts: _Counts) -> None:
            counts.told, counts.sealed_told = {}, 0
            for token, found in tombstones.items():
                counts.add_deletes(token, max(found - counts.deletes.get(token, 0), 0))

        self._count(repository, branch, record, count)

    def pressure(self, repository: str, branch: str) -> BranchPressure:
        """What is counted for a branch now, reported or not."""
        with self._lock:
            counts = self._branches.get((repository, branch))
            return BranchPressure() if counts is None else counts.pressure

    def close(self) -> None:
        """Stop counting; what was triggered can still be taken. Closing again does nothing."""
        with self._lock:
            self._closed = True
            self._branches.clear()

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each branch that is counted."""
        with self._lock:
            return [{"repository": repository, "branch": branch, **attrs.asdict(counts.pressure)}
                    for (repository, branch), counts in self._branches.items()]

    def __repr__(self) -> str:
        return f"CompactionSensor({len(self._branches)} branches, {len(self._triggers)} triggers waiting)"

    def _repr_html_(self) -> str:
        return Table.from_dicts(self.to_dicts(), title=repr(self))._repr_html_()

    def _count(self, repository: str, branch: str, record: BranchRecord, count: Callable[[_Counts], None]) -> None:
        with self._lock:
            if self._closed:
                return
            counts = self._counts_of(repository, branch, record)
            count(counts)
            news = counts.news
        self._decide(repository, branch, news)

    def _count_deletes(self, repository: str, branch: str, record: BranchRecord, number: int) -> None:
        self._count(repository, branch, record, lambda counts: counts.add_deletes(record.staging_token, number))

    def _count_listed(self, repository: str, branch: str, record: BranchRecord, number: int) -> None:
        def count(counts: _Counts) -> None:
            if set(record.tokens) <= set(counts.record.tokens):
                counts.listed += number

        self._count(repository, branch, record, count)

    def _see(self, repository: str, branch: str, record: BranchRecord) -> None:
        # Called with every read: what changes nothing must cost nothing. A race here is put right by the next call.
        counts = self._branches.get((repository, branch))
        if not record.sealed_tokens if counts is None else counts.record == record:
            return
        with self._lock:
            if self._closed:
                return
            news = self._counts_of(repository, branch, record).news
        self._decide(repository, branch, news)

    def _decide(self, repository: str, branch: str, news: BranchPressure) -> None:
        """Ask the policy, outside of the lock; the last count decides."""
        try:
            choice = self._policy.choose(news, self._clock.now())
            if choice.is_empty:
                return
        except Exception as error:
            self._note(error)
            return
        with self._lock:
            counts = self._branches.get((repository, branch))
            if (counts is None or counts.news != news or self._closed
                    or len(self._triggers) >= self._buffer):
                return
            self._triggers.append(CompactionTrigger(repository, branch, choice.why, news))
            counts.tell()
            listeners = self._listeners
        for listener in listeners:
            failed = tell(listener)
            if failed is not None:
                self.last_error, self.failures = failed, self.failures + 1

    def _note(self, error: Exception) -> None:
        self.last_error = error
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:
            _LOGGER.warning("the policy %r raised %r (failure %d); nothing is triggered", self._policy, error,
                            self.failures, exc_info=error)

    def _forget(self, repository: str, branch: str) -> None:
        with self._lock:
            self._branches.drop((repository, branch))

    def _counts_of(self, repository: str, branch: str, record: BranchRecord) -> _Counts:
        """What is counted of the branch, which has this record, or had it."""
        key = repository, branch
        counts = self._branches.get(key)
        if counts is None:
            counts = _Counts(record)
            self._branches.put(key, counts)
        counts.see(record)
        return counts


class _RepositoryEvents(StagingEvents):
    def __init__(self, sensor: CompactionSensor, repository: str) -> None:
        self._sensor = sensor
        self._repository = repository

    def record_seen(self, branch: str, record: BranchRecord) -> None:
        self._sensor._see(self._repository, branch, record)

    def tombstones_written(self, branch: str, record: BranchRecord, count: int) -> None:
        self._sensor._count_deletes(self._repository, branch, record, count)

    def tombstones_listed(self, branch: str, record: BranchRecord, count: int) -> None:
        self._sensor._count_listed(self._repository, branch, record, count)

    committed = reset = compacted = record_seen

    def branch_deleted(self, branch: str) -> None:
        self._sensor._forget(self._repository, branch)
