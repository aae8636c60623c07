# SPDX-License-Identifier: Apache-2.0
"""What a compaction did: one value per group, and the report over all of them."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from compactlib.errors import BudgetSpent, StorageError
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.compaction.plan.plan import DROP_DEAD, GroupFailed, LeftOutSegment
from compactlib.report import PolicyRecord, Printed, Table


@attrs.frozen(kw_only=True)
class GroupStats:
    """What rewriting one group did. Sizes are whole files, in bytes.

    Attributes:
        members: numbers of the segments that became one; the first is the number of the new one.
        entries_before: index records in the members.
        entries_after: entries in the new segment.
        bytes_read: bytes read from the members.
        bytes_written: size of the new segment.
        bytes_freed: how much smaller the new file is than its members were together.
        seconds: how long the copying took.
    """

    members: tuple[int, ...]
    entries_before: int
    entries_after: int
    bytes_read: int
    bytes_written: int
    bytes_freed: int
    seconds: float


GroupOutcome: TypeAlias = GroupStats | GroupFailed


@attrs.frozen(kw_only=True, repr=False)
class LogCompactionReport(Printed):
    """What one compaction did. Sizes are whole files, in bytes.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` gives its rows as data.

    Attributes:
        policy: the name of the policy that chose what was rewritten.
        why: the plan's reason.
        snapshot_index: the snapshot that it relied on.
        dropped: numbers of the segments that were removed whole.
        dropped_bytes: what their files held; given back at once, or when the last lease on them ends.
        groups: each group's outcome.
        left_out: segments that were left alone, with the reason.
        purged_links: numbers of merged segments whose old names are gone now.
        unreclaimed: why files that no reader can reach are still there, if the disk refused to remove them; the
            next run tries again.
        seconds: how long everything took.
    """

    policy: PolicyRecord
    why: str
    snapshot_index: int
    dropped: tuple[int, ...]
    dropped_bytes: int
    groups: tuple[GroupOutcome, ...]
    left_out: tuple[LeftOutSegment, ...]
    purged_links: tuple[int, ...]
    unreclaimed: StorageError | None
    seconds: float

    @property
    def drops_only(self) -> bool:
        """See `LogPlan.drops_only`."""
        return self.policy == DROP_DEAD

    @property
    def done(self) -> tuple[GroupStats, ...]:
        """The groups that were rewritten."""
        return tuple(group for group in self.groups if isinstance(group, GroupStats))

    @property
    def failed(self) -> tuple[GroupFailed, ...]:
        """The groups that were not."""
        return tuple(group for group in self.groups if isinstance(group, GroupFailed))

    @property
    def bytes_read(self) -> int:
        """Bytes read from sources."""
        return sum(group.bytes_read for group in self.done)

    @property
    def bytes_written(self) -> int:
        """Bytes written to new segments."""
        return sum(group.bytes_written for group in self.done)

    @property
    def bytes_freed(self) -> int:
        """Bytes given back by drops and groups."""
        return self.dropped_bytes + sum(group.bytes_freed for group in self.done)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a drop, group and left-out segment."""
        rows = [_row("dropped", (number,), "holds no live entry") for number in self.dropped]
        for group in self.groups:
            if isinstance(group, GroupFailed):
                rows.append(_row("failed", group.members, str(group.error)))
            else:
                numbers = attrs.asdict(group)
                rows.append({**_row("rewritten", numbers.pop("members"), ""), **numbers})
        rows.extend(_row("kept", (left.stats.number,), left.reason) for left in self.left_out)
        return sorted(rows, key=lambda row: int(row["members"][0]))

    def table(self) -> Table:
        """The rows of `to_dicts()` under a title with the totals."""
        return Table.from_dicts([{**row, "members": ", ".join(map(str, row["members"]))} for row in self.to_dicts()],
                                title=self._summary())

    def _summary(self) -> str:
        trouble = f", {len(self.failed)} groups FAILED" if self.failed else ""
        if self.unreclaimed is not None:
            trouble += ", files left to be removed"
        return (f"{self.policy} at snapshot {self.snapshot_index} ({self.why}): dropped {len(self.dropped)}, "
                f"rewrote {sum(len(group.members) for group in self.done)} segments into {len(self.done)}, kept "
                f"{len(self.left_out)}{trouble}; read {self.bytes_read:,}, wrote {self.bytes_written:,}, freed "
                f"{self.bytes_freed:,} bytes in {self.seconds:.3f} s")


@attrs.frozen(kw_only=True)
class CompactionFailed(Failed):
    """Not everything that was planned could be carried out; what was committed stays, and the next run goes on.

    Attributes:
        report: what was done all the same, and each failure.
    """

    report: LogCompactionReport

    def to_dicts(self) -> list[dict[str, Any]]:
        """The row of a failure, and those of the report."""
        return [*Failed(self.error, self.changed).to_dicts(),
                *({"outcome": "failed", **row} for row in self.report.to_dicts())]


CompactionOutcome: TypeAlias = Done[LogCompactionReport] | Skipped | Failed
"""What `SegmentLog.compact` answers; where something of a plan failed, the `Failed` is a `CompactionFailed`."""


def outcome_of(report: LogCompactionReport) -> Done[LogCompactionReport] | CompactionFailed:
    """`Done` if everything was carried out, else `CompactionFailed` with the first error."""
    if not report.failed:
        return Done(report)
    told = {failed.changed for failed in report.failed}
    partly = bool(report.done or report.dropped or "partly" in told)
    # A cancellation is reported to the caller that asked for it, whatever else failed.
    error = next((each.error for each in report.failed if isinstance(each.error, BudgetSpent)), report.failed[0].error)
    return CompactionFailed(error, "unknown" if "unknown" in told else "partly" if partly else "no",
                            report=report)


def report_of(outcome: CompactionOutcome) -> LogCompactionReport | None:
    """What a compaction did, whatever it ended in; `None` if it did nothing."""
    if isinstance(outcome, Done):
        return outcome.stats
    return outcome.report if isinstance(outcome, CompactionFailed) else None


@attrs.frozen(kw_only=True, repr=False)
class LogReclaimReport(Printed):
    """What was freed: files that no reader could reach any more.

    Attributes:
        segments: numbers of the dropped segments whose files are gone now.
        links: numbers of merged segments whose old names are gone now.
        leftovers: names of an interrupted compaction that were finished, undone or removed.
        bytes_freed: what the files of the segments held.
        waiting: how many dropped segments still wait for the end of a lease.
    """

    segments: tuple[int, ...]
    links: tuple[int, ...]
    leftovers: tuple[str, ...]
    bytes_freed: int
    waiting: int

    def __bool__(self) -> bool:
        return bool(self.segments or self.links or self.leftovers)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each name."""
        return [*({"what": "segment", "name": str(number)} for number in self.segments),
                *({"what": "old name", "name": str(number)} for number in self.links),
                *({"what": "leftover", "name": name} for name in self.leftovers)]

    def _summary(self) -> str:
        return (f"{len(self.segments)} segments, {len(self.links)} old names and {len(self.leftovers)} leftovers "
                f"reclaimed, {self.bytes_freed:,} bytes; {self.waiting} segments wait for a lease")


def _row(action: str, members: tuple[int, ...], reason: str) -> dict[str, Any]:
    return {"action": action, "members": members, "entries_before": None, "entries_after": None, "bytes_read": None,
            "bytes_written": None, "bytes_freed": None, "seconds": None, "reason": reason}
