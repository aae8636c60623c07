# SPDX-License-Identifier: Apache-2.0
"""`CompactionSensor`: counts, in memory, the pressure on branches; its set holds the branches to inspect.

A process has one sensor for any number of repositories. Counting never blocks, sends no request and calls no policy. A
branch stays in the set until a compaction or a commit of any process has removed its tombstones, until the policy no
longer wants it inspected, or until it is deleted. Counts that the sensor loses (at the end of the process, or above
10,000 branches) cost a compaction, never data.
"""

from __future__ import annotations

import threading
from typing import Final

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.lru import Lru
from compactlib.staging.policies import PressurePolicy
from compactlib.staging.policy import BranchPressure, SensePolicy
from compactlib.staging.record import BranchRecord
from compactlib.staging.values import StagingToken

_MAX_BRANCHES: Final = 10_000
"""Branches that are counted at most; the least recently used are dropped."""


@attrs.frozen
class CompactionTrigger:
    """A branch that should be compacted, and the policy's reason."""

    repository: str
    branch: str
    why: str


class _Counts:
    """The counts of a branch, under the newest record that was read.

    Deletes are counted by token: a seal keeps them, and a commit, compaction or reset that drops the token drops them.
    Tombstones met by listings are counted until a token is dropped.
    """

    def __init__(self, record: BranchRecord) -> None:
        self.record = record
        self.deletes: dict[StagingToken, int] = {}
        self.listed = 0
        self.is_changed = True  # since the last call of the policy
        self.why: str | None = None  # the policy's reason to inspect the branch

    def see(self, record: BranchRecord) -> None:
        """Take a record, unless it is outdated, and drop the counts of dropped tokens."""
        before = self.record
        if record.is_outdated_by(before):
            return
        self.record = record
        if not set(before.tokens) <= set(record.tokens):
            self.listed = 0
            self.deletes = {token: count for token, count in self.deletes.items() if token in record.tokens}

    def add(self, token: StagingToken, deletes: int) -> None:
        """Count tombstones of a token, unless it was dropped."""
        if token in self.record.tokens:
            self.deletes[token] = self.deletes.get(token, 0) + deletes

    @property
    def pressure(self) -> BranchPressure:
        """The counts."""
        return BranchPressure(deletes=sum(self.deletes.values()), tombstones_listed=self.listed,
                              sealed_tokens=len(self.record.sealed_tokens))


class CompactionSensor:
    """Counts the tombstones and sealed tokens that operations meet. Any thread may call any method.

    The counts of a token are dropped once the branch no longer names it, after a commit, a reset or a compaction of any
    process.

    Args:
        policy: decides which branches are in the set; default `PressurePolicy()`. Only `take` calls it.
        clock: "now" of the policy.
    """

    def __init__(self, policy: SensePolicy | None = None, *, clock: Clock | None = None) -> None:
        self._policy: SensePolicy = PressurePolicy() if policy is None else policy
        self._clock: Clock = SystemClock() if clock is None else clock
        self._branches: Lru[tuple[str, str], _Counts] = Lru(_MAX_BRANCHES)
        self._lock = threading.Lock()

    # --- the set

    def take(self) -> tuple[CompactionTrigger, ...]:
        """Return the branches to inspect now; they stay in the set. Calls the policy for each changed branch.

        Raises:
            Exception: of the policy; the next call retries it.
        """
        now = self._clock.now()
        with self._lock:
            counted = list(self._branches.items())
        found = []
        for (repository, branch), counts in counted:
            if counts.is_changed:
                with self._lock:
                    pressure, counts.is_changed = counts.pressure, False
                try:
                    choice = self._policy.choose(pressure, now)
                except BaseException:
                    counts.is_changed = True
                    raise
                counts.why = None if choice.is_empty else choice.why
            if counts.why is not None:
                found.append(CompactionTrigger(repository, branch, counts.why))
        return tuple(found)

    def seed(self, repository: str, branch: str, record: BranchRecord, tombstones: int) -> None:
        """Count the staged tombstones of a branch at a start, including those that this sensor has counted."""
        with self._lock:
            counts = self._counts_of(repository, branch, record)
            counts.add(record.staging_token, max(0, tombstones - counts.pressure.deletes))

    # --- observations of operations

    def saw(self, repository: str, branch: str, record: BranchRecord) -> None:
        """Note a record that an operation has read or written."""
        # Called with every read, so an unchanged record takes no lock. The next call corrects a race here.
        counts = self._branches.get((repository, branch))
        if not record.sealed_tokens if counts is None else counts.record == record:
            return
        with self._lock:
            self._counts_of(repository, branch, record)

    def wrote_tombstones(self, repository: str, branch: str, record: BranchRecord, number: int) -> None:
        """Count tombstones that were written into the record's staging token."""
        with self._lock:
            self._counts_of(repository, branch, record).add(record.staging_token, number)

    def listed_tombstones(self, repository: str, branch: str, record: BranchRecord, number: int) -> None:
        """Count tombstones that a page of a listing skipped."""
        with self._lock:
            counts = self._counts_of(repository, branch, record)
            if set(record.tokens) <= set(counts.record.tokens):
                counts.listed += number

    def forget(self, repository: str, branch: str) -> None:
        """Drop the counts of a deleted branch."""
        with self._lock:
            self._branches.drop((repository, branch))

    def _counts_of(self, repository: str, branch: str, record: BranchRecord) -> _Counts:
        """Return the counts of a branch, updated with a record that may be outdated, and mark them as changed."""
        key = repository, branch
        counts = self._branches.get(key)
        if counts is None:
            counts = _Counts(record)
            self._branches.put(key, counts)
        counts.see(record)
        counts.is_changed = True
        return counts
