# SPDX-License-Identifier: Apache-2.0
"""The entries of a log in its store's WAL, for a `LogReader` of the log's folder.

The newest entries of a `RaftLog`, and its last truncations, are in the WAL of the store until they are flushed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from compactlib.errors import CorruptData, StorageError, Unsupported
from compactlib.files.disk import StrPath, list_folder
from compactlib.raftlog.log.folder import Examination, is_log
from compactlib.raftlog.memtable import Memtable, replay
from compactlib.raftlog.model.names import LOGS_FOLDER, WAL_FOLDER
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.raftlog.segment.segments import Segments
from compactlib.raftlog.wal.frames import Frame
from compactlib.raftlog.wal.recovery import read_wal


def logs_of_store(folder: StrPath) -> list[str] | None:
    """The folders of the logs of the store in `folder`, sorted; `None` if there is no store.

    Raises:
        StorageError: the folder cannot be read.
    """
    logs = os.path.join(folder, LOGS_FOLDER)
    if not (os.path.isdir(logs) and os.path.isdir(os.path.join(folder, WAL_FOLDER))):
        return None
    paths = [os.path.join(logs, name) for name in list_folder(logs) if not name.startswith(".")]
    return [path for path in paths if not os.path.islink(path) and is_log(path)]


def examine_wal(wal: str, log_id: str | None, seen: Examination) -> None:
    """Read all files of a WAL, which may have a writer, and add damage to `seen`.

    Args:
        wal: its folder.
        log_id: of the log whose entries are counted; `None`: all logs.
        seen: collects the findings.

    Raises:
        StorageError: a file cannot be read.
    """
    try:
        seen.records += sum(len(frame.payloads) for frame in read_frames(wal, log_id))
    except (CorruptData, Unsupported) as error:
        seen.note(error)
    seen.bytes_read += sum(size for _, size, _ in wal_files(wal))


def read_frames(wal: str, log_id: str | None) -> tuple[Frame, ...]:
    """The frames of a log (`None`: of all) in a WAL, which may have a writer. Reads all files.

    Raises:
        CorruptData: a file is damaged in its durable part.
        Unsupported: a file was written by another release.
        StorageError: a file cannot be read.
    """
    seen: object = None
    while True:
        before = wal_files(wal)
        try:
            return tuple(each.frame for each in read_wal(wal).frames if log_id in (None, each.log_id))
        except (CorruptData, StorageError):
            # A flush may have removed a file, or a batch was being written: only a repeated failure is damage.
            if seen == before == wal_files(wal):
                raise
            seen = before


def replayed(frames: Sequence[Frame], segments: Segments, row: SnapshotMeta) -> Memtable | None:
    """The memtable after a replay of `frames` over `segments`; `None` if it is empty.

    Raises:
        NotFound: a segment was removed; re-read the folder.
        CorruptData: the predecessor of a sparse entry is missing.
    """
    refs = segments.refs
    memtable = Memtable(refs[-1].last if refs else -1, max_entries=MAX_INDEX)
    for frame in frames:
        replay(frame, memtable, row, segments.matching)
    memtable.require_links()
    return memtable if memtable.tables else None


def wal_files(wal: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of change of the files; the times because frames may overwrite zeros."""
    listed = []
    for name in list_folder(wal):
        with contextlib.suppress(OSError):
            found = os.stat(os.path.join(wal, name))
            listed.append((name, found.st_size, found.st_mtime_ns))
    return listed
