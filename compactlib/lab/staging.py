# SPDX-License-Identifier: Apache-2.0
"""A branch of a staging area without data, compacted when the real `CompactionSensor` says so.

A put stages a value, a delete stages a tombstone over whatever there is of a key, a read lists a page from its key on
and passes over the tombstones on its way. A trigger compacts at once: what is staged becomes the base, of which each
range that it touches is written anew, as the real compaction does.

The user's bytes are those of staged values and tombstones; a compaction copies the ranges of the base that it changes,
whole; dead are entries of the base that a staged one hides, and tombstones. A value that is staged over a staged one
takes its place, and leaves nothing dead.
"""

from __future__ import annotations

import attrs
from sortedcontainers import SortedSet

from compactlib._arguments import is_seconds, is_whole
from compactlib.clock import ManualClock
from compactlib.lab.report import Measures
from compactlib.lab.simulation import Simulation
from compactlib.lab.workloads import DELETE, PUT, Operations
from compactlib.staging import CompactionSensor
from compactlib.staging.policy import BranchRecord, SensePolicy, StagingToken

_REPOSITORY, _BRANCH = "lab", "main"


@attrs.frozen(kw_only=True)
class BranchModel:
    """A branch to be replayed; times to live are not known to it.

    Attributes:
        page_keys: keys that a listing returns at most, at least 1.
        base_keys: the keys below this were committed before.
        base_bytes: size of each of those, at least 1.
        tombstone_bytes: what a tombstone takes, at least 0.
        range_keys: keys (neighbouring numbers) in a range of the base, at least 1.
        window_seconds: at most one compaction starts within it, and what was triggered in between is compacted when it
            ends, as a worker does with the policies of a repository (whose default is 300); 0: no limit.

    Raises:
        InvalidInput: a value is out of its range.
    """

    page_keys: int = attrs.field(default=100, validator=is_whole(1))
    base_keys: int = attrs.field(default=0, validator=is_whole())
    base_bytes: int = attrs.field(default=1, validator=is_whole(1))
    tombstone_bytes: int = attrs.field(default=1, validator=is_whole())
    range_keys: int = attrs.field(default=1_000, validator=is_whole(1))
    window_seconds: float = attrs.field(default=0.0, validator=is_seconds())

    def start(self, policy: SensePolicy, seed: int = 0) -> BranchSimulation:
        """A branch with its base."""
        return BranchSimulation(self, policy)


class BranchSimulation(Simulation):
    """A branch under replay: which keys are committed, staged and deleted, and how large they are.

    Args:
        model: the branch.
        policy: decides when it is compacted.
    """

    def __init__(self, model: BranchModel, policy: SensePolicy) -> None:
        super().__init__(policy)
        self._clock = ManualClock()
        self._sensor = CompactionSensor(policy, clock=self._clock)
        self._model = model
        self._record = BranchRecord(staging_token=StagingToken("token-0"))
        self._compactions = 0
        self._window_ends_ms = -(1 << 62)
        # Why the compaction that waits for the end of the window was triggered.
        self._pending: str | None = None
        self._base: dict[int, int] = dict.fromkeys(range(model.base_keys), model.base_bytes)
        self._in_range: dict[int, set[int]] = {}
        for key in self._base:
            self._in_range.setdefault(key // model.range_keys, set()).add(key)
        # Of each staged key its size, `None` for a tombstone; and since when something of it is dead.
        self._staged: dict[int, int | None] = {}
        self._dead_since: dict[int, int] = {}
        self._live: SortedSet[int] = SortedSet(self._base)
        self._tombstones: SortedSet[int] = SortedSet()
        self._base_bytes = sum(self._base.values())
        self._staged_bytes = self._hidden_bytes = 0
        self._reasons: list[str] = []

    def apply(self, piece: Operations) -> None:
        """Make these operations, and compact as the sensor says."""
        counts = self.counts
        counts.operations += len(piece)
        for kind, key, size, _, at in piece.rows():
            self.now_ms = at
            if kind == PUT:
                self._stage(key, size)
                self._live.add(key)
                self._tombstones.discard(key)
            elif kind == DELETE:
                self._delete(key)
            else:
                self._list_from(key)
            self._compact_when_due()
            counts.peak_used_bytes = max(counts.peak_used_bytes, self.used_bytes)

    def _stage(self, key: int, size: int | None) -> None:
        tombstone = self._model.tombstone_bytes
        taken = tombstone if size is None else size
        if key in self._staged:
            before = self._staged[key]
            self._staged_bytes -= tombstone if before is None else before
        else:
            self._hidden_bytes += self._base.get(key, 0)
        if size is None or key in self._base:
            self._dead_since.setdefault(key, self.now_ms)
        else:
            self._dead_since.pop(key, None)
        self._staged[key] = size
        self._staged_bytes += taken
        self.counts.user_bytes += taken

    def _delete(self, key: int) -> None:
        """Stage a tombstone if the base or the staging token holds anything of the key, as the real branch does."""
        if key not in self._base and key not in self._staged:
            return
        is_fresh = key not in self._tombstones
        self._live.discard(key)
        self._tombstones.add(key)
        self._stage(key, None)
        self.counts.deletes += 1
        self.counts.peak_tombstones = max(self.counts.peak_tombstones, len(self._tombstones))
        if is_fresh:
            self._clock.set_now(self.now_ms / 1000)
            self._sensor.wrote_tombstones(_REPOSITORY, _BRANCH, self._record, 1)

    def _list_from(self, key: int) -> None:
        first = self._live.bisect_left(key)
        page = self._live[first:first + self._model.page_keys]
        # A listing that comes to the end has passed over everything up to there.
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
        """Compact if there was a trigger and the window lets it; a later trigger within the window is the same one."""
        trigger = None if self._pending else next(iter(self._sensor.take()), None)
        if trigger is not None:
            self._pending = trigger.why
            self.counts.asked += 1
            self.sample()
        if self._pending and self.now_ms >= self._window_ends_ms:
            self._window_ends_ms = self.now_ms + round(self._model.window_seconds * 1000)
            self._reasons.append(self._pending)
            self._pending = None
            self.counts.compactions += 1
            self._rewrite()
        elif trigger is not None:
            self.counts.throttled += 1

    def _rewrite(self) -> None:
        """Make the base of what is staged."""
        counts, base, staged, width = self.counts, self._base, self._staged, self._model.range_keys
        tombstone = self._model.tombstone_bytes
        touched = {key // width for key in staged}
        ranges = [keys for number in touched if (keys := self._in_range.get(number))]
        read = sum(base[key] for keys in ranges for key in keys) + self._staged_bytes
        counts.reclaimed_bytes += self._hidden_bytes + len(self._tombstones) * tombstone
        for key, since in self._dead_since.items():
            dead = base.get(key, 0) + (tombstone if staged[key] is None else 0)
            counts.waited_byte_seconds += (self.now_ms - since) * dead / 1000
        for key, size in staged.items():
            keys = self._in_range.setdefault(key // width, set())
            self._base_bytes += (size or 0) - base.pop(key, 0)
            keys.discard(key)
            if size is not None:
                keys.add(key)
                base[key] = size
        written = [self._in_range[number] for number in touched]
        self.moved(read, sum(base[key] for keys in written for key in keys))
        counts.victims += len(ranges)
        counts.freed_segments += len(ranges) - sum(map(bool, written))
        counts.moved_entries += len(staged)
        for column in (staged, self._dead_since, self._tombstones):
            column.clear()
        self._staged_bytes = self._hidden_bytes = 0
        self._compactions += 1
        token = StagingToken(f"token-{self._compactions}")
        self._record = attrs.evolve(self._record, version=self._record.version + 1, staging_token=token)
        self._sensor.saw(_REPOSITORY, _BRANCH, self._record)

    @property
    def used_bytes(self) -> int:
        return self._base_bytes + self._staged_bytes

    @property
    def live_bytes(self) -> int:
        return self.used_bytes - self._hidden_bytes - len(self._tombstones) * self._model.tombstone_bytes

    def cut(self) -> Measures:
        done = super().cut()
        done.reasons = tuple(self._reasons)
        self._reasons.clear()
        self.counts.peak_tombstones = len(self._tombstones)
        return done
