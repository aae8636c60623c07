# SPDX-License-Identifier: Apache-2.0
"""What a folder holds when a log is opened: a log, nothing, or something else."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque

import attrs

from compactlib.errors import CorruptData, NotFound, StorageError, Unsupported
from compactlib.files.disk import Files, StrPath, list_folder, look_at
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.model.gap import read_gap
from compactlib.raftlog.model.hard_state import read_hard_state
from compactlib.raftlog.model.names import (
    GAP_NAME,
    HARD_STATE_NAME,
    LOCK_NAME,
    LOGS_FOLDER,
    SNAPSHOT_NAME,
    WAL_FOLDER,
    compacting_members,
    is_temporary,
    segment_name,
    segment_number,
)
from compactlib.raftlog.segment.known import KnownSegment, know_segment
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_set import list_segments, open_segment
from compactlib.report import Finding, VerifyReport
from compactlib.runtime.budget import Budget

_MAX_LOOKS = 100
_OF_THE_SYSTEM = frozenset({LOCK_NAME, "lost+found"})


@attrs.frozen
class FolderContents:
    """The segments in a folder.

    Attributes:
        known: those that hold entries, oldest first, with the ranges in their files.
        empty: numbers of those that hold none.
        newest: the newest one's number and open reader, `None` if there is no segment.
        readers: numbers and open readers of the newest few, itself included.
    """

    known: tuple[KnownSegment, ...]
    empty: tuple[int, ...]
    newest: tuple[int, SegmentReader] | None
    readers: tuple[tuple[int, SegmentReader], ...]


def wal_of(folder: StrPath) -> str | None:
    """The folder of the WAL to which the log in `folder` writes first; `None` for a log without one."""
    path = os.path.realpath(folder)
    wal = os.path.join(os.path.dirname(os.path.dirname(path)), WAL_FOLDER)
    if os.path.basename(os.path.dirname(path)) != LOGS_FOLDER or not os.path.isdir(wal):
        return None
    # Loaded for logs of a store only: a log that stands alone has no WAL.
    from compactlib.raftlog.wal.names import wal_number

    # A store that was ever opened has a file there; folders of a host may have these names for other reasons. A listing
    # that runs while a new file takes the place of the only one may show neither.
    return wal if any(wal_number(name) is not None for _ in range(2) for name in list_folder(wal)) else None


def require_log(folder: StrPath, *, may_create: bool) -> bool:
    """Whether there is a log in `folder`; if not, whether one may be made there.

    Raises:
        NotALog: the folder holds other things, is missing and may not be made, or is no folder.
        StorageError: it cannot be read.
    """
    path = os.fspath(folder)
    if look_at(path) is None:
        if may_create:
            return False
        raise NotALog(f"{path} does not exist; check the path, or make a log there with SegmentLog and create=True",
                      path=path)
    try:
        names = list_folder(path)
    except StorageError as error:
        if error.errno not in (errno.ENOTDIR, errno.ENOENT):
            raise
        raise NotALog(f"{path} is not a folder; a log is a folder of segment files", path=path) from None
    if any(_belongs_to_log(name) for name in names):
        return True
    strangers = [name for name in names if name not in _OF_THE_SYSTEM and not name.startswith(".")]
    if strangers or not may_create:
        found = f"{len(names)} other files, such as {strangers[0]!r}" if strangers else "nothing"
        raise NotALog(f"{path} is not a log: expected segment files such as {segment_name(1)!r}, found {found}; "
                      f"check the path, or create a log in an empty folder", path=path)
    return False


def is_log(folder: StrPath) -> bool:
    """Whether a folder is that of a Raft log.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return require_log(folder, may_create=False)
    except NotALog:
        return False


def read_folder(folder: StrPath, *, keep_open: int = 1) -> FolderContents:
    """Open every segment and learn what it holds; `keep_open` readers stay. Costs one read of each segment's index.

    A file that a compaction in another process removes meanwhile is no error: the folder is looked at anew.

    Raises:
        CorruptData, Unsupported: a segment is damaged or of an unknown version.
        NotFound: files kept vanishing while they were opened.
        StorageError: one cannot be read.
    """
    for _ in range(_MAX_LOOKS - 1):
        with contextlib.suppress(NotFound):
            return _look_into(folder, keep_open)
    return _look_into(folder, keep_open)


def _look_into(folder: StrPath, keep_open: int) -> FolderContents:
    numbers = _with_head(folder)
    known: list[KnownSegment] = []
    empty: list[int] = []
    readers: deque[tuple[int, SegmentReader]] = deque(maxlen=max(keep_open, 1))
    for number in numbers:
        reader = open_segment(folder, number, newest=number == numbers[-1])
        segment = know_segment(number, reader)
        if segment is None:
            empty.append(number)
        else:
            known.append(segment)
        readers.append((number, reader))
    return FolderContents(tuple(known), tuple(empty), readers[-1] if readers else None, tuple(readers))


def discard_headless_newest(files: Files, folder: StrPath) -> None:
    """Remove a newest segment file of no bytes, which a crash of another writer can leave."""
    numbers = list_segments(folder)
    if numbers and _is_headless(folder, numbers[-1]):
        files.unlink(os.path.join(folder, segment_name(numbers[-1])))
        files.sync_folder(folder)


def _with_head(folder: StrPath) -> list[int]:
    """The segments there are, without a newest one of no bytes."""
    numbers = list_segments(folder)
    return numbers[:-1] if numbers and _is_headless(folder, numbers[-1]) else numbers


def _is_headless(folder: StrPath, number: int) -> bool:
    """Whether a segment's file has no bytes; only the newest may be found so, and then it holds nothing."""
    try:
        return os.path.getsize(os.path.join(folder, segment_name(number))) == 0
    except OSError:
        return False


@attrs.define
class Examination:
    """What reading a log has found so far.

    Attributes:
        findings: everything that is not as it should be.
        records: entries read.
        bytes_read: bytes of the files that hold them.
    """

    findings: list[Finding] = attrs.field(factory=list)
    records: int = 0
    bytes_read: int = 0

    def note(self, error: CorruptData | Unsupported, *, kind: str = "damage") -> None:
        """Add what reading has raised."""
        if isinstance(error, Unsupported):
            self.findings.append(Finding("format", "", str(error), error))
            return
        index = "" if error.index is None else f" (index {error.index})"
        self.findings.append(Finding(kind, f"{error.path} at offset {error.offset}{index}",
                                     f"expected {error.expected}, found {error.found}", error))

    def report(self) -> VerifyReport:
        """What was found."""
        return VerifyReport(tuple(self.findings), self.records, self.bytes_read)


def examine_segments(folder: StrPath, seen: Examination, *, budget: Budget | None = None) -> None:
    """Read every entry of every segment and note what is damaged, oldest first; segments that cannot be opened too, and
    the hard state.

    A segment that a compaction removes meanwhile is passed over.

    Args:
        folder: the log's.
        seen: takes what is found.
        budget: asked before each segment.

    Raises:
        BudgetSpent: the budget refused.
        StorageError: a segment cannot be read.
    """
    numbers = _with_head(folder)
    for number in numbers:
        if budget is not None:
            budget.check()
        try:
            with open_segment(folder, number, newest=number == numbers[-1]) as reader:
                seen.records += len(reader.index)
                seen.bytes_read += os.fstat(reader.fileno()).st_size
                for error in reader.damaged_entries():
                    seen.note(error)
        except (CorruptData, Unsupported) as error:
            seen.note(error)
        except NotFound:
            continue
    for read in (read_hard_state, read_gap):
        try:
            read(folder)
        except (CorruptData, Unsupported) as error:
            seen.note(error)


def room_in(files: Files, folder: StrPath) -> int | None:
    """Room for new files in a folder; `None` where it is unknown."""
    try:
        return files.available_bytes(folder)
    except StorageError:
        return None


def _belongs_to_log(name: str) -> bool:
    # Names such as `rewrite-…` are not enough: what is taken for a log's leftovers is removed.
    return (segment_number(name) is not None or compacting_members(name) is not None or is_temporary(name)
            or name in (SNAPSHOT_NAME, HARD_STATE_NAME, GAP_NAME))
