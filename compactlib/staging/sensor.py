# SPDX-License-Identifier: Apache-2.0
"""`CompactionSensor`: counts, in memory, what makes a branch worth compacting: the set of branches to look at.

It is one per process and serves any number of repositories. Counting never blocks, never reads and asks no policy. A
branch is in the set as long as the policy wants it looked at; it leaves when a compaction or a commit, of whichever
process, has taken its tombstones away, or when it is deleted. What the sensor forgets (when the process ends, or when
there are more branches than it keeps) costs a compaction, never data.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.lru import Lru
from compactlib.report import Printed
from compactlib.staging.names import StagingToken
from compactlib.staging.policies import BranchPressure, PressurePolicy, SensePolicy
from compactlib.staging.record import BranchRecord

_MAX_BRANCHES: Final = 10_000
"""Branches that are counted at most; the least recently used are dropped."""


@attrs.frozen
class CompactionTrigger:
    """A branch that should be compacted.

    Attributes:
        repository: whose branch.
        branch: which branch.
        why: the policy's reason.
        pressure: what is counted.
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

    def __init__(self, record: BranchRecord) -> None:
        self.record = record
        self.deletes: dict[StagingToken, int] = {}
        self.listed = 0
        self.is_changed = True  # since the policy was asked
        self.why: str | None = None  # the policy wants it; its reason
        self.not_before = float("-inf")  # by the steady clock

    def see(self, record: BranchRecord) -> None:
        """Forget what is gone, if this record is newer than the one before."""
        before = self.record
        if record.is_outdated_by(before):
            return
        self.record = record
        if record.version >= before.version and record.tokens != before.tokens:
            if not set(before.tokens) <= set(record.tokens):
                self.listed = 0
            self.deletes = {token: count for token, count in self.deletes.items() if token in record.tokens}

    @property
    def pressure(self) -> BranchPressure:
        """All that is counted."""
        return BranchPressure(deletes=sum(self.deletes.get(token, 0) for token in self.record.tokens),
                              tombstones_listed=self.listed, sealed_tokens=len(self.record.sealed_tokens))


class CompactionSensor(Printed):
    """Counts what operations come across. Any thread may call any method.

    What is counted of a token goes when the branch names the token no longer: after a commit, a reset, a compaction,
    whichever process did it.

    Args:
        policy: decides which branches are in the set; default `PressurePolicy()`. Asked by `take` alone.
        clock: what "now" is to the policy, and measures delays.
    """

    def __init__(self, policy: SensePolicy | None = None, *, clock: Clock | None = None) -> None:
        self._policy: SensePolicy = PressurePolicy() if policy is None else policy
        self._clock: Clock = SystemClock() if clock is None else clock
        self._branches: Lru[tuple[str, str], _Counts] = Lru(max_entries=_MAX_BRANCHES)
        self._lock = threading.Lock()

    # --- the set

    def take(self) -> tuple[CompactionTrigger, ...]:
        """Return the branches to look at now; they stay in the set. Asks the policy about each that has changed.

        Raises:
            Exception: what the policy raises; it is asked again the next time.
        """
        now, steady = self._clock.now(), self._clock.monotonic()
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
            if counts.why is not None and counts.not_before <= steady:
                with self._lock:
                    found.append(CompactionTrigger(repository, branch, counts.why, counts.pressure))
        return tuple(found)

    def put_off(self, repository: str, branch: str, seconds: float) -> None:
        """Leave a branch out of `take` for so long: a refused attempt stays in the set, with a delay."""
        with self._lock:
            counts = self._branches.get((repository, branch))
            if counts is not None:
                counts.not_before = self._clock.monotonic() + seconds

    def pressure(self, repository: str, branch: str) -> BranchPressure:
        """Return what is counted for a branch now."""
        with self._lock:
            counts = self._branches.get((repository, branch))
            return BranchPressure() if counts is None else counts.pressure

    def seed(self, repository: str, branch: str, record: BranchRecord, *,
             tombstones: Mapping[StagingToken, int]) -> None:
        """Count what lies on a branch, so that a start does not begin from nothing.

        Args:
            repository: whose branch.
            branch: which branch.
            record: its record.
            tombstones: how many each of its tokens holds; what was counted here meanwhile is among them.
        """
        with self._lock:
            counts = self._counts_of(repository, branch, record)
            for token, number in tombstones.items():
                if token in counts.record.tokens:
                    counts.deletes[token] = max(number, counts.deletes.get(token, 0))

    # --- what operations come across

    def saw(self, repository: str, branch: str, record: BranchRecord) -> None:
        """Note a state of a branch that an operation has read or written."""
        # Called with every read: what changes nothing must cost nothing. A race here is put right by the next call.
        counts = self._branches.get((repository, branch))
        if not record.sealed_tokens if counts is None else counts.record == record:
            return
        with self._lock:
            self._counts_of(repository, branch, record)

    def wrote_tombstones(self, repository: str, branch: str, record: BranchRecord, number: int) -> None:
        """Count tombstones that were written into the record's staging token."""
        with self._lock:
            counts = self._counts_of(repository, branch, record)
            if record.staging_token in counts.record.tokens:
                counts.deletes[record.staging_token] = counts.deletes.get(record.staging_token, 0) + number

    def listed_tombstones(self, repository: str, branch: str, record: BranchRecord, number: int) -> None:
        """Count tombstones that a page of a listing had to pass over."""
        with self._lock:
            counts = self._counts_of(repository, branch, record)
            if set(record.tokens) <= set(counts.record.tokens):
                counts.listed += number

    def forget(self, repository: str, branch: str) -> None:
        """Forget a branch that is gone."""
        with self._lock:
            self._branches.drop((repository, branch))

    def _counts_of(self, repository: str, branch: str, record: BranchRecord) -> _Counts:
        """Return what is counted of the branch, which has this record, or had it; it counts as changed."""
        key = repository, branch
        counts = self._branches.get(key)
        if counts is None:
            counts = _Counts(record)
            self._branches.put(key, counts)
        counts.see(record)
        counts.is_changed = True
        return counts

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each branch that is counted."""
        with self._lock:
            return [{"repository": repository, "branch": branch, **attrs.asdict(counts.pressure)}
                    for (repository, branch), counts in self._branches.items()]

    def _summary(self) -> str:
        with self._lock:
            wanted = sum(counts.why is not None for _, counts in self._branches.items())
        return f"{len(self._branches)} branches counted, {wanted} to be compacted"
