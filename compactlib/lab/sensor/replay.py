"""Replays a workload against the policy that says when a branch is compacted: the real `CompactionSensor`, no data.

A put stages a value, a delete stages a tombstone over whatever there is of a key, a read lists a page from its key on
and passes over the tombstones on its way. A trigger compacts at once: what is staged becomes the base, of which each
range that it touches is written anew, as the real compaction does.
"""

from __future__ import annotations

import attrs

from compactlib.errors import InvalidInput
from compactlib.lab.sensor.branch import SensorBranch
from compactlib.lab.sensor.report import SensorMeasures, SensorReport
from compactlib.lab.traces.operations import DELETE, PUT
from compactlib.lab.traces.workloads import Workload
from compactlib.runtime.observe import Observer, Progress
from compactlib.staging.compaction.policy import SensePolicy


@attrs.frozen(kw_only=True)
class SensorSettings:
    """The branch of a replay.

    Attributes:
        page_keys: keys that a listing gives at most, at least 1.
        base_keys: the keys below this were committed before.
        base_bytes: size of each of those, at least 1.
        tombstone_bytes: what a tombstone takes, at least 0.
        range_keys: keys (neighbouring numbers) in a range of the base, at least 1.
        window_seconds: at most one compaction starts within it, and a trigger in between is lost, as with the real
            policies of a repository (whose default is 300); 0: no limit.
        intervals: into about how many parts the report is cut, if the length of the workload is known, at least 1.
        capacity_bytes: of the store, for `peak_fill`; nothing is refused above it. 0: unknown.

    Raises:
        InvalidInput: a number is out of its range.
    """

    page_keys: int = 100
    base_keys: int = 0
    base_bytes: int = 1
    tombstone_bytes: int = 1
    range_keys: int = 1_000
    window_seconds: float = 0.0
    intervals: int = 20
    capacity_bytes: int = 0

    def __attrs_post_init__(self) -> None:
        for name, least in (("page_keys", 1), ("base_keys", 0), ("base_bytes", 1), ("tombstone_bytes", 0),
                            ("range_keys", 1), ("window_seconds", 0), ("intervals", 1), ("capacity_bytes", 0)):
            if getattr(self, name) < least:
                raise InvalidInput(f"{name} is {getattr(self, name)}; give at least {least}")

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
        observer: told of progress, in operations.
    """
    replay = SensorReplay(policy, SensorSettings() if settings is None else settings,
                          expected_operations=workload.operations)
    told = Observer() if observer is None else observer
    work = f"replay {workload.name} against a sensor"
    for piece in workload.pieces(seed):
        for kind, key, size, _, at in piece.rows():
            replay.make(kind, key, size, at)
        told.progress(Progress(work, replay.operations, max(workload.operations, replay.operations + 1), "operations"))
    told.progress(Progress(work, replay.operations, replay.operations, "operations"))
    return replay.report(str(workload))


class SensorReplay:
    """A replay under way: make operations, ask for the report. One thread at a time.

    Args:
        policy: says when the branch is compacted.
        settings: the branch.
        expected_operations: how many will come, for the length of an interval; 0: one interval alone.
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
            self._close_interval()
        return why

    def _close_interval(self) -> None:
        self._intervals.append(self.branch.stretch(self.operations - self._closed_at))
        self._closed_at = self.operations

    def report(self, workload: str) -> SensorReport:
        """What has come of it so far; `workload` is what was replayed, in words."""
        if self.operations > self._closed_at or not self._intervals:
            self._close_interval()
        self.branch.audit()
        return SensorReport(policy=str(self._policy), workload=workload, intervals=tuple(self._intervals))
