# SPDX-License-Identifier: Apache-2.0
"""Replays a workload against the policy that says when a branch is compacted: the real `CompactionSensor`, no data.

A put stages a value, a delete stages a tombstone over whatever there is of a key, a read lists a page from its key on
and passes over the tombstones on its way. A trigger compacts at once: what is staged becomes the base, of which each
range that it touches is written anew, as the real compaction does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
from sortedcontainers import SortedSet

from compactlib._arguments import is_seconds, is_whole
from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed
from compactlib.lab.operations import DELETE, PUT
from compactlib.lab.report import HIDDEN, MOST, MeasuredReport, Measures, part
from compactlib.lab.workloads import Workload
from compactlib.observer import Observer, Observers
from compactlib.staging import CompactionSensor
from compactlib.staging.policy import BranchRecord, SensePolicy, StagingToken


def _texts(values: object) -> tuple[str, ...]:
    return tuple(values)  # type: ignore[arg-type]


@attrs.frozen(kw_only=True)
class SensorMeasures(Measures):
    """One stretch of a sensor's replay.

    The user's bytes are those of staged values and tombstones; a compaction copies the ranges of the base that it
    changes, whole; dead are entries of the base that a staged one hides, and tombstones. What is staged over what was
    staged takes its place, and counts as dead nowhere else.

    Attributes:
        deletes: tombstones that were written.
        listed_keys: keys that listings (`reads`) gave.
        passed_tombstones: tombstones that they passed over.
        throttled: triggers that came within the window of a compaction, and waited for its end.
        moved_entries: staged entries, tombstones included, that compactions took into the base.
        peak_tombstones: the most tombstones that were staged at once.
        reasons: why each compaction came, in order.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {
        **Measures.FIGURES,
        "read_amplification": "entries that listings looked at for each key that they gave",
    }

    deletes: int = 0
    listed_keys: int = 0
    passed_tombstones: int = 0
    throttled: int = 0
    moved_entries: int = 0
    peak_tombstones: int = attrs.field(default=0, metadata=MOST)
    reasons: tuple[str, ...] = attrs.field(default=(), converter=_texts, metadata=HIDDEN)

    @property
    def read_amplification(self) -> float:
        """Entries that listings looked at for each key that they gave; NaN if they gave none."""
        return part(self.listed_keys + self.passed_tombstones, self.listed_keys)


@attrs.frozen(kw_only=True, repr=False)
class SensorReport(MeasuredReport[SensorMeasures]):
    """What a sensor's policy made of a workload. See `MeasuredReport`."""

    MEASURES: ClassVar[type[Measures]] = SensorMeasures

    def _summary(self) -> str:
        total = self.total
        return (f"{self.policy} on {self.workload}: {total.operations:,} operations, {total.compactions:,} "
                f"compactions, write amplification {total.write_amplification:.3f}, listings looked at "
                f"{total.read_amplification:.3f} entries for each key")


_REPOSITORY, _BRANCH = "lab", "main"


@attrs.frozen(kw_only=True)
class SensorSettings:
    """The branch of a replay.

    Attributes:
        page_keys: keys that a listing gives at most, at least 1.
        base_keys: the keys below this were committed before.
        base_bytes: size of each of those, at least 1.
        tombstone_bytes: what a tombstone takes, at least 0.
        range_keys: keys (neighbouring numbers) in a range of the base, at least 1.
        window_seconds: at most one compaction starts within it, and what was triggered in between is compacted when it
            ends, as a worker does with the policies of a repository (whose default is 300); 0: no limit.
        intervals: into about how many parts the report is cut, if the length of the workload is known, at least 1.
        capacity_bytes: of the store, for `peak_fill`; nothing is refused above it. 0: unknown.

    Raises:
        InvalidInput: a value is out of its range or of another type.
    """

    page_keys: int = attrs.field(default=100, validator=is_whole(1))
    base_keys: int = attrs.field(default=0, validator=is_whole())
    base_bytes: int = attrs.field(default=1, validator=is_whole(1))
    tombstone_bytes: int = attrs.field(default=1, validator=is_whole())
    range_keys: int = attrs.field(default=1_000, validator=is_whole(1))
    window_seconds: float = attrs.field(default=0.0, validator=is_seconds())
    intervals: int = attrs.field(default=20, validator=is_whole(1))
    capacity_bytes: int = attrs.field(default=0, validator=is_whole())

    def replay(self, workload: Workload, policy: SensePolicy, *, seed: int,
               observer: Observer | None = None) -> SensorReport:
        """See `replay_sensor`, and `Setup.replay`."""
        return replay_sensor(workload, policy, self, seed=seed, observer=observer)

    def read_report(self, text: str) -> SensorReport:
        """See `Setup.read_report`."""
        return SensorReport.from_json(text)

    def name_of(self, policy: SensePolicy) -> str:
        """See `Setup.name_of`: what the policy prints as."""
        return str(policy)


def replay_sensor(workload: Workload, policy: SensePolicy, settings: SensorSettings | None = None, *, seed: int = 0,
                  observer: Observer | None = None) -> SensorReport:
    """What `policy` makes of `workload` on one branch. Equal arguments give equal reports; memory follows the keys.

    Args:
        workload: puts, deletes and, as reads, listings; times to live are not known to a branch.
        policy: says when the branch is compacted.
        settings: the branch.
        seed: of the workload.
        observer: notified of progress, in operations.
    """
    replay = SensorReplay(policy, SensorSettings() if settings is None else settings,
                          expected_operations=workload.operations)
    told = Observers(observer)
    work = f"replay {workload.name} against a sensor"
    for piece in workload.pieces(seed):
        for kind, key, size, _, at in piece.rows():
            replay.make(kind, key, size, at)
        if not workload.operations:
            replay.close_interval()
        told.event("progress", work=work, done=replay.operations, total=max(workload.operations, replay.operations + 1),
                   unit="operations")
    told.event("progress", work=work, done=replay.operations, total=replay.operations, unit="operations")
    return replay.report(str(workload))


class SensorReplay:
    """A replay under way: make operations, ask for the report. One thread at a time.

    Args:
        policy: says when the branch is compacted.
        settings: the branch.
        expected_operations: how many will come, for the length of an interval; 0: they end at `close_interval`.
    """

    def __init__(self, policy: SensePolicy, settings: SensorSettings, *, expected_operations: int = 0) -> None:
        self.operations: int = 0
        self.branch: SensorBranch = SensorBranch(policy, settings)
        self._policy = policy
        self._interval = max(expected_operations // settings.intervals, 1) if expected_operations else 0
        self._intervals: list[SensorMeasures] = []
        self._closed_at = 0

    def make(self, kind: int, key: int, size: int, time_ms: int) -> str | None:
        """Make one operation; gives the reason of the trigger that it led to, if any.

        Args:
            kind: `PUT`, `DELETE` or `READ`.
            key: which key.
            size: of a value that is put.
            time_ms: when.
        """
        branch = self.branch
        branch.now_ms = time_ms
        if not self.operations:
            branch.begin()
        self.operations += 1
        if kind == PUT:
            branch.put(key, size)
        elif kind == DELETE:
            branch.delete(key)
        else:
            branch.list_from(key)
        why = branch.compact_when_due()
        if self._interval and self.operations - self._closed_at >= self._interval:
            self.close_interval()
        return why

    def close_interval(self) -> None:
        """End an interval of the report here."""
        self._intervals.append(self.branch.stretch(self.operations - self._closed_at))
        self._closed_at = self.operations

    def report(self, workload: str) -> SensorReport:
        """What has come of it so far; `workload` is what was replayed, in words."""
        if self.operations > self._closed_at or not self._intervals:
            self.close_interval()
        self.branch.audit()
        return SensorReport(policy=str(self._policy), workload=workload, intervals=tuple(self._intervals))


class SensorBranch:
    """A branch without values: which keys are committed, staged and deleted, how large they are, the real sensor, and
    what is counted. Memory follows the keys.

    Args:
        policy: says when it is compacted.
        settings: how it is laid out.
    """

    def __init__(self, policy: SensePolicy, settings: SensorSettings) -> None:
        self.now_ms: int = 0
        self._clock = ManualClock()
        self.sensor: CompactionSensor = CompactionSensor(policy, clock=self._clock)
        self._settings = settings
        self._record = BranchRecord(staging_token=StagingToken("token-0"))
        self._compactions = 0
        self._window_ends_ms = -(1 << 62)
        self._pending: str | None = None
        self._base: dict[int, int] = dict.fromkeys(range(settings.base_keys), settings.base_bytes)
        self._in_range: dict[int, set[int]] = {}
        for key in self._base:
            self._in_range.setdefault(key // settings.range_keys, set()).add(key)
        # Of each staged key its size, `None` for a tombstone; and since when something of it is dead.
        self._staged: dict[int, int | None] = {}
        self._dead_since: dict[int, int] = {}
        self._live: SortedSet[int] = SortedSet(self._base)
        self._tombstones: SortedSet[int] = SortedSet()
        self._base_bytes = sum(self._base.values())
        self._staged_bytes = self._hidden_bytes = 0
        self._fresh_counts()

    def begin(self) -> None:
        """The first operation comes now."""
        self._started_ms = self.now_ms

    def _fresh_counts(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(
            ("reads", "user_bytes", "copied_bytes", "read_bytes", "asked", "compactions", "victims", "freed_segments",
             "reclaimed_bytes", "used_sum", "live_sum", "record_sum", "deletes", "listed_keys", "passed_tombstones",
             "throttled", "moved_entries", "most_moved_bytes"), 0)
        self._waited_ms = 0
        self._reasons: list[str] = []
        self._peak_used = self._used_bytes
        self._peak_tombstones = len(self._tombstones)
        self._started_ms = self.now_ms

    @property
    def _used_bytes(self) -> int:
        return self._base_bytes + self._staged_bytes

    @property
    def _live_bytes(self) -> int:
        return self._used_bytes - self._hidden_bytes - len(self._tombstones) * self._settings.tombstone_bytes

    # ---------------------------------------------------------------------------------------------------- operations

    def put(self, key: int, size: int) -> None:
        """Stage a value."""
        self._stage(key, size)
        self._live.add(key)
        self._tombstones.discard(key)

    def delete(self, key: int) -> None:
        """Stage a tombstone if the base or the staging token holds anything of the key, as the real branch does."""
        if key not in self._base and key not in self._staged:
            return
        is_fresh = key not in self._tombstones
        self._live.discard(key)
        self._tombstones.add(key)
        self._stage(key, None)
        self._counts["deletes"] += 1
        self._peak_tombstones = max(self._peak_tombstones, len(self._tombstones))
        self._clock.set_now(self.now_ms / 1000)
        if is_fresh:
            self.sensor.wrote_tombstones(_REPOSITORY, _BRANCH, self._record, 1)

    def _stage(self, key: int, size: int | None) -> None:
        tombstone = self._settings.tombstone_bytes
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
        self._counts["user_bytes"] += taken
        self._peak_used = max(self._peak_used, self._used_bytes)

    def list_from(self, key: int) -> None:
        """List one page from `key` on."""
        first = self._live.bisect_left(key)
        page = self._live[first:first + self._settings.page_keys]
        # A listing that comes to the end has passed over everything up to there.
        full = len(page) == self._settings.page_keys
        end = self._tombstones.bisect_left(page[-1]) if full else len(self._tombstones)
        passed = end - self._tombstones.bisect_left(key)
        self._counts["reads"] += 1
        self._counts["listed_keys"] += len(page)
        self._counts["passed_tombstones"] += passed
        if passed:
            self._clock.set_now(self.now_ms / 1000)
            self.sensor.listed_tombstones(_REPOSITORY, _BRANCH, self._record, passed)

    # --------------------------------------------------------------------------------------------------- compactions

    def compact_when_due(self) -> str | None:
        """Compact if there was a trigger, and the window lets it; gives the reason of the trigger, if there is one."""
        trigger = next(iter(self.sensor.take()), None) if self._pending is None else None
        if trigger is not None:
            self._pending = trigger.why
            self._counts["asked"] += 1
            self._sample()
        if self._pending is not None and self.now_ms >= self._window_ends_ms:
            self._window_ends_ms = self.now_ms + round(self._settings.window_seconds * 1000)
            self._reasons.append(self._pending)
            self._pending = None
            self._compact()
        elif trigger is not None:
            self._counts["throttled"] += 1
        return None if trigger is None else trigger.why

    def _compact(self) -> None:
        counts = self._counts
        touched = {key // self._settings.range_keys for key in self._staged}
        ranges = [keys for number in touched if (keys := self._in_range.get(number))]
        before = sum(self._base[key] for keys in ranges for key in keys)
        counts["read_bytes"] += before + self._staged_bytes
        counts["reclaimed_bytes"] += self._hidden_bytes + len(self._tombstones) * self._settings.tombstone_bytes
        self._waited_ms += sum((self.now_ms - since) * self._dead_with(key)
                               for key, since in self._dead_since.items())
        for key, size in self._staged.items():
            keys = self._in_range.setdefault(key // self._settings.range_keys, set())
            self._base_bytes += (size or 0) - self._base.pop(key, 0)
            keys.discard(key)
            if size is not None:
                keys.add(key)
                self._base[key] = size
        written = [self._in_range[number] for number in touched]
        copied = sum(self._base[key] for keys in written for key in keys)
        counts["copied_bytes"] += copied
        counts["most_moved_bytes"] = max(counts["most_moved_bytes"], before + self._staged_bytes + copied)
        counts["victims"] += len(ranges)
        counts["freed_segments"] += len(ranges) - sum(map(bool, written))
        counts["compactions"] += 1
        counts["moved_entries"] += len(self._staged)
        for column in (self._staged, self._dead_since, self._tombstones):
            column.clear()
        self._staged_bytes = self._hidden_bytes = 0
        self._compactions += 1
        token = StagingToken(f"token-{self._compactions}")
        self._record = attrs.evolve(self._record, version=self._record.version + 1, staging_token=token)
        self.sensor.saw(_REPOSITORY, _BRANCH, self._record)

    def _dead_with(self, key: int) -> int:
        """Bytes of a key that a compaction gives back: what the base has, and a tombstone."""
        return self._base.get(key, 0) + (self._settings.tombstone_bytes if self._staged[key] is None else 0)

    # ----------------------------------------------------------------------------------------------------- reporting

    def _sample(self) -> None:
        self._counts["used_sum"] += self._used_bytes
        self._counts["record_sum"] += self._used_bytes
        self._counts["live_sum"] += self._live_bytes

    def stretch(self, operations: int) -> SensorMeasures:
        """What has come since the last stretch, of so many operations; begins anew."""
        self._sample()
        made = SensorMeasures(
            start=self._started_ms / 1000, end=self.now_ms / 1000, operations=operations,
            waited_byte_seconds=self._waited_ms / 1000, capacity_bytes=self._settings.capacity_bytes,
            used_bytes=self._used_bytes, live_bytes=self._live_bytes, peak_used_bytes=self._peak_used,
            peak_tombstones=self._peak_tombstones, reasons=tuple(self._reasons), **self._counts)
        self._fresh_counts()
        return made

    def audit(self) -> None:
        """Check the counts against the keys. O(keys).

        Raises:
            AuditFailed: a number is not what its parts come to.
        """
        tombstones = {key for key, size in self._staged.items() if size is None}
        hidden = sum(self._base.get(key, 0) for key in self._staged)
        staged = sum(self._settings.tombstone_bytes if size is None else size for size in self._staged.values())
        live = sum(size for key, size in self._base.items() if key not in self._staged)
        live += sum(size or 0 for size in self._staged.values())
        found = (self._hidden_bytes, self._staged_bytes, self._live_bytes, set(self._tombstones))
        if found != (hidden, staged, live, tombstones):
            raise AuditFailed(f"hidden, staged and live bytes and tombstones are counted as {found[:3]} and "
                              f"{len(found[3])}; the keys come to {(hidden, staged, live)} and {len(tombstones)}")
        held = {key for keys in self._in_range.values() for key in keys}
        if held != set(self._base) or self._base_bytes != sum(self._base.values()):
            raise AuditFailed(f"ranges hold {len(held)} keys, the base has {len(self._base)}")
