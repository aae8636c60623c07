"""What a compaction did: one value per group, and the report over all of them."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from compactlib.errors import CompactlibError, StorageError
from compactlib.outcome import Done, Failed
from compactlib.raftlog.plan import LeftOutSegment
from compactlib.report import Table


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


@attrs.frozen
class GroupFailed:
    """A group that did not become one segment, and why; or a single segment that could not be judged.

    Nothing that is live is lost. If the error came after the new segment was in place, the next run, or opening the
    log, finishes the group; before that, its sources are untouched.

    Attributes:
        members: numbers of the segments that were to become one.
        error: what stopped it.
    """

    members: tuple[int, ...]
    error: CompactlibError


GroupOutcome: TypeAlias = GroupStats | GroupFailed


@attrs.frozen(kw_only=True, repr=False)
class CompactionReport:
    """What one compaction did. Sizes are whole files, in bytes.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` gives its rows as data.

    Attributes:
        kind: `"minor"` or `"major"`.
        why: what made it a major one, or who asked.
        snapshot_index: the snapshot that it relied on.
        dropped: numbers of the segments that were removed whole.
        dropped_bytes: what their files held; given back at once, or when the last lease on them ends.
        groups: each group's outcome.
        left_out: segments that were left alone, with the reason.
        purged_links: numbers of merged segments whose old names are gone now.
        unreclaimed: why files that nobody can read any more are still there, if the disk refused to remove them; the
            next run tries again.
        seconds: how long everything took.
    """

    kind: str
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
        return (f"{self.kind} compaction at snapshot {self.snapshot_index} ({self.why}): dropped {len(self.dropped)}, "
                f"rewrote {sum(len(group.members) for group in self.done)} segments into {len(self.done)}, kept "
                f"{len(self.left_out)}{trouble}; read {self.bytes_read:,}, wrote {self.bytes_written:,}, freed "
                f"{self.bytes_freed:,} bytes in {self.seconds:.3f} s")

    def __repr__(self) -> str:
        return f"<CompactionReport: {self._summary()}>"

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def outcome_of(report: CompactionReport) -> Done[CompactionReport] | Failed:
    """`Failed` with the first error if nothing at all was achieved, else `Done`, which may hold failed groups."""
    if report.failed and not report.done and not report.dropped:
        return Failed(report.failed[0].error)
    return Done(report)


def _row(action: str, members: tuple[int, ...], reason: str) -> dict[str, Any]:
    return {"action": action, "members": members, "entries_before": None, "entries_after": None, "bytes_read": None,
            "bytes_written": None, "bytes_freed": None, "seconds": None, "reason": reason}
