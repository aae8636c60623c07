# SPDX-License-Identifier: Apache-2.0
"""What lies in the folder of a log, for a person to look at; changes nothing, and others may be writing."""

from __future__ import annotations

import os
from typing import Any

import attrs

from compactlib.indexset import IndexSet
from compactlib.raftlog import LogReader, LogView, OtherName, SnapshotMeta
from compactlib.report import Table


@attrs.frozen(kw_only=True)
class Inspection:
    """A log's folder at one moment.

    Attributes:
        folder: which one.
        view: statistics of every segment.
        file_bytes: size of each segment's file, in the same order; `None` if a compaction has just removed it.
        snapshot: what the last snapshot left in the log.
        unflushed: entries that are in the write-ahead log of the log's store, and in no segment yet.
        others: every other name in the folder.
    """

    folder: str
    view: LogView
    file_bytes: tuple[int | None, ...]
    snapshot: SnapshotMeta | None
    unflushed: IndexSet
    others: tuple[OtherName, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data: `folder`, `snapshot`, `segments` (one dictionary each), `unflushed`, `others`."""
        state = self.snapshot
        told = None if state is None else {"index": state.index, "live_indexes": len(state.live)}
        return {"folder": self.folder, "snapshot": told, "segments": self._rows(),
                "unflushed": len(self.unflushed), "others": [attrs.asdict(other) for other in self.others]}

    def tables(self) -> tuple[Table, Table]:
        """The segments, and the other names."""
        return (Table.from_dicts(self._rows(), title=self._summary()),
                Table.from_dicts([attrs.asdict(other) for other in self.others], title="Other names"))

    def _rows(self) -> list[dict[str, Any]]:
        return [{"segment": stats.number, "first": stats.ref.first, "last": stats.ref.last,
                 "entries": stats.entries, "live": stats.live_entries, "dead": stats.entries - stats.live_entries,
                 "payload_bytes": stats.data_bytes, "live_bytes": stats.live_bytes, "file_bytes": size}
                for stats, size in zip(self.view.segments, self.file_bytes, strict=True)]

    def _summary(self) -> str:
        segments, state = self.view.segments, self.snapshot
        entries, live = sum(stats.entries for stats in segments), sum(stats.live_entries for stats in segments)
        snapshot = ("no snapshot yet, so everything is live" if state is None
                    else f"snapshot at {state.index:,} with {len(state.live):,} live indexes")
        return (f"{self.folder}: {len(segments):,} segments, {entries:,} entries ({live:,} live), "
                f"{sum(size or 0 for size in self.file_bytes):,} bytes; {snapshot}"
                + (f"; {len(self.unflushed):,} newer entries are in the store's write-ahead log" if self.unflushed
                   else ""))


def inspect_log(reader: LogReader) -> Inspection:
    """Look at everything in the folder of an open log.

    Raises:
        CorruptData, LiveIndexMissing: a segment cannot be judged.
    """
    view = reader.view()
    return Inspection(folder=reader.folder, view=view, snapshot=reader.snapshot, unflushed=reader.unflushed,
                      file_bytes=tuple(_size(reader.path_of(stats.number)) for stats in view.segments),
                      others=reader.other_names())


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None
