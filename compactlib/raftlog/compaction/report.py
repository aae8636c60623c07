# SPDX-License-Identifier: Apache-2.0
"""The reports of a compaction and a reclaim, and the changes of the list of segments for the host."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.errors import BudgetSpent, CompactlibError
from compactlib.raftlog.compaction.plan import LogPlan
from compactlib.raftlog.compaction.policy import GroupFailed
from compactlib.raftlog.values import SegmentRef, SegmentStats
from compactlib.report import PolicyRecord, Printed


@attrs.frozen(kw_only=True)
class GroupStats:
    """The result of rewriting a group. Sizes are of whole files, in bytes.

    Attributes:
        members: numbers of the merged segments; the first is the number of the new segment.
        bytes_read: bytes read from the members.
        bytes_written: size of the new segment.
        bytes_freed: size of the members together, less `bytes_written`.
    """

    members: tuple[int, ...]
    bytes_read: int
    bytes_written: int
    bytes_freed: int


@attrs.frozen(kw_only=True, repr=False)
class LogCompactionReport(Printed):
    """The report of a compaction. Sizes are of whole files, in bytes.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` gives its rows as data.

    Attributes:
        plan: the plan that was carried out.
        why: the plan's reason, or the lack of room; of an empty report the closed gate, its value, and the setting to
            change.
        drops: the dropped segments; their files go at once, or when the last lease on them ends.
        done: the groups that were rewritten.
        failed: the groups that failed.
        unreclaimed: the error that left files that no reader can reach: the disk refused to remove them, or the host's
            `on_changes` failed. The next run retries.
        seconds: time of the whole run.
    """

    plan: LogPlan
    why: str
    drops: tuple[SegmentStats, ...]
    done: tuple[GroupStats, ...]
    failed: tuple[GroupFailed, ...]
    unreclaimed: CompactlibError | None
    seconds: float

    @property
    def policy(self) -> PolicyRecord:
        """The policy that chose the groups."""
        return self.plan.policy

    @property
    def dropped(self) -> tuple[int, ...]:
        """Numbers of the dropped segments."""
        return tuple(drop.number for drop in self.drops)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was dropped, rewritten or tried; `why` names the gate."""
        return not (self.drops or self.done or self.failed)

    @property
    def is_partial(self) -> bool:
        """Whether the caller's budget was spent before the end; the next run continues."""
        return any(isinstance(each.error, BudgetSpent) for each in self.failed)

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
        """Bytes freed by drops and groups."""
        return sum(drop.file_bytes for drop in self.drops) + sum(group.bytes_freed for group in self.done)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary for each drop and group."""
        return [*({"action": "dropped", "members": (each.number,), "bytes_freed": each.file_bytes}
                  for each in self.drops),
                *({"action": "rewritten", **attrs.asdict(each)} for each in self.done),
                *({"action": "failed", "members": each.members, "error": str(each.error)} for each in self.failed)]

    def _summary(self) -> str:
        if self.is_empty:
            return f"{self.policy}: nothing was done: {self.why}"
        trouble = f", {len(self.failed)} groups FAILED" if self.failed else ""
        if self.unreclaimed is not None:
            trouble += ", files left to be removed"
        return (f"{self.policy} {self.plan.view.place} ({self.why}): dropped {len(self.drops)}, rewrote "
                f"{sum(len(group.members) for group in self.done)} segments into {len(self.done)}, kept "
                f"{len(self.plan.kept)}{trouble}; read {self.bytes_read:,}, wrote {self.bytes_written:,}, freed "
                f"{self.bytes_freed:,} bytes in {self.seconds:.3f} s")


@attrs.frozen(kw_only=True)
class SegmentChanges:
    """How the list of a log's segments has changed since its host was last notified; given to `LogOptions.on_changes`.

    Attributes:
        folder: the log's folder.
        new: segments that were begun or have grown.
        merged: older segments with another range: neighbours were merged, or entries were truncated.
        removed: numbers of segments that left the list, and whose files are removed next.
    """

    folder: str
    new: tuple[SegmentRef, ...]
    merged: tuple[SegmentRef, ...]
    removed: tuple[int, ...]


@attrs.frozen(kw_only=True, repr=False)
class LogReclaimReport(Printed):
    """The report of a reclaim.

    Attributes:
        segments: numbers of the dropped segments whose files were removed.
        links: numbers of merged segments whose old names were removed.
        leftovers: names of an interrupted compaction that were finished, undone or removed.
        bytes_freed: size of the removed segments.
        waiting: count of dropped segments that wait for the end of a lease.
        why: the gate of an empty report.
    """

    segments: tuple[int, ...]
    links: tuple[int, ...]
    leftovers: tuple[str, ...]
    bytes_freed: int
    waiting: int
    why: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was removed; `why` names the gate."""
        return not (self.segments or self.links or self.leftovers)

    @property
    def is_partial(self) -> bool:
        """Always false."""
        return False

    def _summary(self) -> str:
        if self.is_empty:
            return f"nothing was reclaimed: {self.why}"
        return (f"{len(self.segments)} segments, {len(self.links)} old names and {len(self.leftovers)} leftovers "
                f"reclaimed, {self.bytes_freed:,} bytes; {self.waiting} segments wait for a lease")
