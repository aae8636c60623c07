"""What a log's worker does next, without threads: requests and results in, effects out (seed, "log worker").

```
idle ──asked──▶ running ──ended──▶ reporting ──the server knows──▶ files removed ──▶ idle, or running again
```

One compaction at a time. What is asked for meanwhile is remembered as one request, the strongest of all, and runs
afterwards. The server hears of each change before a file goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs

from compactlib.errors import AuditFailed, InvalidInput
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.model import SegmentRef
from compactlib.raftlog.refs import merge_refs
from compactlib.raftlog.result import CompactionReport, GroupStats, report_of

CompactionKind: TypeAlias = Literal["auto", "minor", "major"]
"""What the worker is asked for: what the log's trigger says, drops alone, or what the log's policy chooses as well."""
WorkerStage: TypeAlias = Literal["idle", "running", "reporting", "closed"]
WorkerOutcome: TypeAlias = Done[CompactionReport] | Skipped | Failed
_STRENGTH: dict[CompactionKind, int] = {"minor": 1, "auto": 2, "major": 3}


@attrs.frozen
class MergedSegments:
    """Segments that became one.

    Attributes:
        members: their numbers, ascending; the first is that of the new one.
        ref: the new segment's range.
    """

    members: tuple[int, ...]
    ref: SegmentRef


@attrs.frozen
class SegmentChanges:
    """What a compaction did to the list of segments; empty if it did nothing.

    Attributes:
        dropped: segments that are listed no more.
        merged: segments that became one.
    """

    dropped: tuple[int, ...] = ()
    merged: tuple[MergedSegments, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.merged)

    @classmethod
    def of(cls, report: CompactionReport, refs: Sequence[SegmentRef]) -> SegmentChanges:
        """The changes in a report, with the ranges from the log's list after it."""
        found = {ref.number: ref for ref in refs}
        groups = [group.members for group in report.groups if isinstance(group, GroupStats)]
        gone = tuple(number for members in groups if members[0] not in found for number in members)
        return cls((*report.dropped, *gone), tuple(MergedSegments(members, found[members[0]]) for members in groups
                                                   if members[0] in found))

    def applied_to(self, refs: Sequence[SegmentRef]) -> tuple[SegmentRef, ...]:
        """A list of segments with the changes made, whatever came to it since the compaction began. O(segments).

        New segments and overwrites in a newer term concern only what lies above the snapshot, so they stay as they
        are; a range that they cut stays cut. Changes that the list has already are made again without effect.
        """
        gone = {*self.dropped, *(number for each in self.merged for number in each.members)}
        kept = [ref for ref in refs if ref.number not in gone]
        return merge_refs([], sorted([*kept, *(each.ref for each in self.merged)])).refs


@attrs.frozen
class RunCompaction:
    """Run it, with everything it replaces held in place; answer with `ended`."""

    job: int
    kind: CompactionKind


@attrs.frozen
class ReportChanges:
    """Tell the server, and go by the new list from here on; answer with `reported`."""

    job: int
    changes: SegmentChanges
    outcome: WorkerOutcome


@attrs.frozen
class RemoveFiles:
    """The server knows: let go what was held in place, and remove it."""

    job: int


@attrs.frozen
class CancelCompaction:
    """Stop what runs, soon; it ends all the same."""

    job: int


WorkerEffect: TypeAlias = RunCompaction | ReportChanges | RemoveFiles | CancelCompaction


class WorkerCore:
    """See the module. Calls exclude each other; each is O(1) and blocks on nothing."""

    def __init__(self) -> None:
        self._stage: WorkerStage = "idle"
        self._job: int = 0
        self._wanted: CompactionKind | None = None
        self._again: bool = False
        self._snapshot_index: int = -1
        self._is_closing: bool = False

    # -- what happens

    def request(self, kind: CompactionKind) -> list[WorkerEffect]:
        """Somebody wants a compaction.

        Raises:
            InvalidInput: there is no such kind.
        """
        if kind not in _STRENGTH:
            raise InvalidInput(f"a worker takes the kinds 'auto', 'minor' and 'major', found {kind!r}")
        if self._is_closing:
            return []
        if self._wanted is None or _STRENGTH[kind] > _STRENGTH[self._wanted]:
            self._wanted = kind
        return self._next()

    def snapshot_recorded(self, snapshot_index: int) -> list[WorkerEffect]:
        """A snapshot was taken or installed: what died by it can go."""
        self._snapshot_index = max(snapshot_index, self._snapshot_index)
        return self.request("auto")

    def segments_flushed(self) -> list[WorkerEffect]:
        """New segments came, so that what was the newest one need not be left alone any more."""
        return self.request("minor") if self._snapshot_index >= 0 else []

    def ended(self, job: int, outcome: WorkerOutcome, changes: SegmentChanges) -> list[WorkerEffect]:
        """The answer to `RunCompaction`."""
        self._expect("running", job)
        self._stage = "reporting"
        # While they were held in place, dropped files kept those on both sides of them apart.
        report = report_of(outcome)
        self._again = report is not None and not report.drops_only and bool(report.dropped)
        return [ReportChanges(job, changes, outcome)]

    def reported(self, job: int) -> list[WorkerEffect]:
        """The answer to `ReportChanges`."""
        self._expect("reporting", job)
        self._stage = "idle"
        again, self._again = self._again, False
        if again and not self._is_closing:
            self._wanted = "major"
        return [RemoveFiles(job), *self._next()]

    def close(self) -> list[WorkerEffect]:
        """Nothing is begun any more."""
        self._is_closing = True
        self._wanted = None
        if self._stage == "running":
            return [CancelCompaction(self._job)]
        return self._next()

    # -- what may be asked

    @property
    def stage(self) -> WorkerStage:
        """What goes on."""
        return self._stage

    @property
    def wanted(self) -> CompactionKind | None:
        """What will run next, if anything."""
        return self._wanted

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self._is_closing

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self._stage in ("idle", "closed") and self._wanted is None

    def audit(self) -> None:
        """Check the machine's own invariants.

        Raises:
            AuditFailed: one is broken; says which.
        """
        if self._stage in ("idle", "closed") and self._wanted is not None:
            raise AuditFailed(f"the worker is {self._stage} while a {self._wanted} compaction waits")
        if self._is_closing and self._wanted is not None:
            raise AuditFailed(f"a {self._wanted} compaction waits although the worker is closing")

    def __repr__(self) -> str:
        return f"WorkerCore({self._stage}, job {self._job}, wanted {self._wanted})"

    def _next(self) -> list[WorkerEffect]:
        if self._stage != "idle":
            return []
        if self._is_closing:
            self._stage = "closed"
            return []
        if self._wanted is None:
            return []
        kind, self._wanted = self._wanted, None
        self._stage = "running"
        self._job += 1
        return [RunCompaction(self._job, kind)]

    def _expect(self, stage: WorkerStage, job: int) -> None:
        if (self._stage, self._job) != (stage, job):
            raise InvalidInput(f"an answer came for job {job} as if {stage}; the worker is {self._stage} with job "
                               f"{self._job}")
