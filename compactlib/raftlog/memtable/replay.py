# SPDX-License-Identifier: Apache-2.0
"""Replay after a crash or restart: rebuilding a log's memtable from the WAL, on top of what segments hold already."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.memtable.table import Memtable
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.wal.frames import Frame, FrameKind

Matching = Callable[[int, int, int], int]
"""How many entries from `first` on, up to `last`, segments hold with `term` (`LogSegments.matching`)."""


def replay(frame: Frame, memtable: Memtable, row: SnapshotMeta, matching: Matching) -> None:
    """Do again what `frame` says was written to a log. Frames come in the order of writing.

    What is dead is left out, and so is what segments hold with the same term (then it is the same entry): a flush that
    a crash interrupted goes on where it stopped.

    Args:
        frame: a run, sparse entries, or a cut.
        memtable: of the log; its `last` begins as that of the segments.
        row: the log's row, which was read before.
        matching: what segments hold.
    """
    if frame.cuts:
        memtable.cut(-1 if frame.previous is None else frame.previous)
    if frame.kind == FrameKind.RUN:
        _replay_run(frame.first, frame.term, frame.payloads, memtable, row, matching)
    elif frame.kind == FrameKind.SPARSE:
        for index, term, payload in zip(frame.indexes, frame.terms, frame.payloads, strict=True):
            _replay_run(index, term, [payload], memtable, row, matching)


def _replay_run(first: int, term: int, payloads: Sequence[bytes], memtable: Memtable, row: SnapshotMeta,
                matching: Matching) -> None:
    last = first + len(payloads) - 1
    start = max(first, row.smallest_live_index)
    if not memtable.tables and start <= memtable.last:
        # Segments answer for everything: what they hold of this need not be written again.
        for run_first, run_last in row.needed(IndexSet.range(first, last)).runs():
            held = matching(run_first, run_last, term)
            if run_first + held <= run_last:
                start = run_first + held
                break
        else:
            return
    if start <= last:
        memtable.replay_run(start, term, payloads[start - first:])
