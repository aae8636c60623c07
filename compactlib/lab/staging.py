# SPDX-License-Identifier: Apache-2.0
"""A branch of a staging area without data, compacted when the real `CompactionSensor` triggers.

A put stages a value, a delete a tombstone. A read lists a page from its key on, and skips tombstones. A trigger
compacts at once: the staged entries are merged into the base, and each range of the base that they change is rewritten
whole, as in the real compaction.

The user's bytes are those of staged values and tombstones. A compaction copies the ranges that it changes. Dead are
tombstones, and entries of the base that a staged entry hides.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from sortedcontainers import SortedSet

from compactlib._arguments import is_whole
from compactlib.clock import ManualClock
from compactlib.lab.simulation import Simulation
from compactlib.lab.workloads import DELETE, PUT, Row
from compactlib.staging import CompactionSensor
from compactlib.staging.policy import BranchRecord, SensePolicy, StagingToken

_REPOSITORY, _BRANCH = "lab", "main"


@attrs.frozen(kw_only=True)
class BranchModel:
    """A branch to be replayed. It ignores times to live.

    Attributes:
        page_keys: the largest number of keys of a listing, at least 1.
        base_keys: the number of keys in the first base, from 0 on.
        base_bytes: size of each of these, at least 1.
        tombstone_bytes: size of a tombstone, at least 0.
        range_keys: keys (neighbouring numbers) in a range of the base, at least 1.

    Raises:
        InvalidInput: a value is out of its range.
    """

    page_keys: int = attrs.field(default=100, validator=is_whole(1))
    base_keys: int = attrs.field(default=0, validator=is_whole())
    base_bytes: int = attrs.field(default=1, validator=is_whole(1))
    tombstone_bytes: int = attrs.field(default=1, validator=is_whole())
    range_keys: int = attrs.field(default=1_000, validator=is_whole(1))

    def start(self, policy: SensePolicy, seed: int = 0) -> BranchSimulation:
        """Make a branch with its base."""
        return BranchSimulation(self, policy)


class BranchSimulation(Simulation):
    """A branch under replay: the keys that are committed, staged and deleted, with their sizes.

    Args:
        model: the branch.
        policy: triggers compactions.
    """

    def __init__(self, model: BranchModel, policy: SensePolicy) -> None:
        super().__init__(policy)
        self._clock = ManualClock()
        self._sensor = CompactionSensor(policy, clock=self._clock)
        self._model = model
        self._record = BranchRecord.new(StagingToken("token-0"))
        self._base: dict[int, int] = dict.fromkeys(range(model.base_keys), model.base_bytes)
        self._in_range: dict[int, set[int]] = {}
        for key in self._base:
            self._in_range.setdefault(key // model.range_keys, set()).add(key)
        # The size of each staged value or tombstone, by key.
        self._staged: dict[int, int] = {}
        self._live: SortedSet[int] = SortedSet(self._base)
        self._tombstones: SortedSet[int] = SortedSet()
        self._base_bytes = sum(self._base.values())
        self._staged_bytes = self._hidden_bytes = 0

    def apply(self, rows: Sequence[Row]) -> None:
        """Make these operations; compact when the sensor triggers."""
        self.counts.operations += len(rows)
        for kind, key, size, _, at in rows:
            self.now_ms = at
            if kind == PUT:
                self._live.add(key)
                self._tombstones.discard(key)
                self._stage(key, size)
            elif kind == DELETE:
                self._delete(key)
            else:
                self._list_from(key)
            self._compact_when_due()

    def _stage(self, key: int, size: int) -> None:
        """Stage a value or a tombstone."""
        if key not in self._staged:
            self._hidden_bytes += self._base.get(key, 0)
        self._staged_bytes += size - self._staged.get(key, 0)
        self._staged[key] = size
        self.counts.user_bytes += size

    def _delete(self, key: int) -> None:
        """Stage and count a tombstone, whatever the layers hold, as the real branch does."""
        self._live.discard(key)
        self._tombstones.add(key)
        self._stage(key, self._model.tombstone_bytes)
        self._clock.set_now(self.now_ms / 1000)
        self._sensor.wrote_tombstones(_REPOSITORY, _BRANCH, self._record, 1)

    def _list_from(self, key: int) -> None:
        first = self._live.bisect_left(key)
        page = self._live[first:first + self._model.page_keys]
        # A listing that reaches the end has skipped all tombstones after its key.
        full = len(page) == self._model.page_keys
        end = self._tombstones.bisect_left(page[-1]) if full else len(self._tombstones)
        passed = end - self._tombstones.bisect_left(key)
        self.counts.reads += 1
        self.counts.listed_keys += len(page)
        self.counts.passed_tombstones += passed
        if passed:
            self._clock.set_now(self.now_ms / 1000)
            self._sensor.listed_tombstones(_REPOSITORY, _BRANCH, self._record, passed)

    # ---------------------------------------------------------------------------------------------------- compaction

    def _compact_when_due(self) -> None:
        """Compact if the sensor triggered."""
        for _ in self._sensor.take():
            self.counts.asked += 1
            self.counts.compactions += 1
            self.sample()
            self._rewrite()

    def _rewrite(self) -> None:
        """Merge the staged entries into the base."""
        base, staged, width = self._base, self._staged, self._model.range_keys
        touched = {key // width for key in staged if key in base or key not in self._tombstones}
        ranges = [keys for number in touched if (keys := self._in_range.get(number))]
        for key, size in staged.items():
            keys = self._in_range.setdefault(key // width, set())
            self._base_bytes -= base.pop(key, 0)
            keys.discard(key)
            if key not in self._tombstones:
                keys.add(key)
                base[key] = size
                self._base_bytes += size
        written = [self._in_range[number] for number in touched]
        self.counts.copied_bytes += sum(base[key] for keys in written for key in keys)
        self.counts.victims += len(ranges)
        self.counts.freed_segments += len(ranges) - sum(map(bool, written))
        staged.clear()
        self._tombstones.clear()
        self._staged_bytes = self._hidden_bytes = 0
        version = self._record.version + 1
        self._record = attrs.evolve(self._record, version=version, staging_token=StagingToken(f"token-{version}"))
        self._sensor.saw(_REPOSITORY, _BRANCH, self._record)

    @property
    def used_bytes(self) -> int:
        return self._base_bytes + self._staged_bytes

    @property
    def live_bytes(self) -> int:
        return self.used_bytes - self._hidden_bytes - self._tombstone_bytes

    @property
    def _tombstone_bytes(self) -> int:
        return len(self._tombstones) * self._model.tombstone_bytes
