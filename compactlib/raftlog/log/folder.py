# SPDX-License-Identifier: Apache-2.0
"""Checks of a folder: whether it is a log's, and which segments are damaged."""

from __future__ import annotations

import errno
import os

import attrs

from compactlib.budget import Budget
from compactlib.errors import CorruptData, NotFound, StorageError, Unsupported
from compactlib.files.disk import StrPath, list_folder, look_at
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.hard_state import read_hard_state
from compactlib.raftlog.names import (
    HARD_STATE_NAME,
    LINK_SUFFIX,
    LOCK_NAME,
    LOGS_FOLDER,
    SNAPSHOT_NAME,
    WAL_FOLDER,
    compacting_members,
    is_leftover,
    segment_name,
    segment_number,
)
from compactlib.raftlog.segment.listing import leader_copied_to, list_segments, open_segment
from compactlib.report import Finding, VerifyReport

_OF_THE_SYSTEM = frozenset({LOCK_NAME, "lost+found"})


def wal_of(folder: StrPath) -> str | None:
    """The folder of the WAL of the log in `folder`; `None` for a log without a WAL."""
    path = os.path.realpath(folder)
    wal = os.path.join(os.path.dirname(os.path.dirname(path)), WAL_FOLDER)
    if os.path.basename(os.path.dirname(path)) != LOGS_FOLDER or not os.path.isdir(wal):
        return None
    # Imported only for logs of a store: other logs have no WAL.
    from compactlib.raftlog.wal.frames import wal_number

    # A store that was opened once has a file there; a host's folders may have these names too. A listing during the
    # replacement of the only file may show neither file, so the folder is listed twice.
    return wal if any(wal_number(name) is not None for _ in range(2) for name in list_folder(wal)) else None


def require_no_store(folder: StrPath) -> None:
    """Raise `Unsupported` for the folder of a log of a store: only the store, which its own lock guards, writes it."""
    if wal_of(folder) is not None:
        raise Unsupported(f"{os.fspath(folder)} is the folder of a log of a store, whose newest entries are in the "
                          f"store's write-ahead log; open the store (RaftLogStore), or read it with a LogReader")


def require_log(folder: StrPath, *, may_create: bool) -> bool:
    """Whether there is a log in `folder`; if not, raise `NotALog` unless a log may be created there.

    Raises:
        NotALog: the folder has other files, is no folder, or has no log and `may_create` is not set.
        StorageError: it cannot be read.
    """
    path = os.fspath(folder)
    if look_at(path) is None:
        if may_create:
            return False
        raise NotALog(f"{path} does not exist; check the path, or create a log with SegmentLog and create=True")
    try:
        names = list_folder(path)
    except StorageError as error:
        if error.errno not in (errno.ENOTDIR, errno.ENOENT):
            raise
        raise NotALog(f"{path} is not a folder; a log is a folder of segment files") from None
    if any(_belongs_to_log(name) for name in names):
        return True
    strangers = [name for name in names if name not in _OF_THE_SYSTEM and not name.startswith(".")]
    if strangers or not may_create:
        found = f"{len(names)} other files, such as {strangers[0]!r}" if strangers else "nothing"
        raise NotALog(f"{path} is not a log: expected segment files such as {segment_name(1)!r}, found {found}; "
                      f"check the path, or create a log in an empty folder")
    return False


def require_links(folder: StrPath, file: str) -> None:
    """Raise `Unsupported` unless the file system of a new log has hard and symbolic links, which compactions need.

    Tries links to `file`, which is there. Not through `Files`: the links mean nothing after a crash, and opening
    removes them as leftovers.
    """
    link = os.path.join(folder, segment_name(1) + LINK_SUFFIX)
    try:
        os.link(file, link)  # noqa: TID251
        os.unlink(link)  # noqa: TID251
        os.symlink(file, link)  # noqa: TID251
        os.unlink(link)  # noqa: TID251
    except OSError as error:
        # A full disk, for example, does not matter here.
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise Unsupported(f"the file system of {os.fspath(folder)} has no hard or no symbolic links, and a log "
                              f"cannot be compacted without; keep it on another file system") from error


def is_log(folder: StrPath) -> bool:
    """Whether a folder is a Raft log's.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return require_log(folder, may_create=False)
    except NotALog:
        return False


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


@attrs.define
class Examination:
    """The findings of a verification, collected in place.

    Attributes:
        findings: damage, and missing entries.
        records: count of entries read.
        bytes_read: size of their files.
    """

    findings: list[Finding] = attrs.field(factory=list)
    records: int = 0
    bytes_read: int = 0

    def note(self, error: CorruptData | Unsupported, *, kind: str = "damage") -> None:
        """Add an error as a finding."""
        if isinstance(error, Unsupported):
            self.findings.append(Finding("format", "", str(error), error))
            return
        index = "" if error.index is None else f" (index {error.index})"
        self.findings.append(Finding(kind, f"{error.path} at offset {error.offset}{index}",
                                     f"expected {error.expected}, found {error.found}", error))

    def add(self, other: Examination) -> None:
        """Add another collection."""
        self.findings += other.findings
        self.records += other.records
        self.bytes_read += other.bytes_read

    def report(self) -> VerifyReport:
        """The findings as a report."""
        return VerifyReport(tuple(self.findings), self.records, self.bytes_read)


def examine_segments(folder: StrPath, seen: Examination, *, budget: Budget | None = None) -> None:
    """Read every entry of every segment, and the hard state; add damage to `seen`, oldest first.

    A segment that a compaction removes during that is skipped. `budget` is checked before each segment.
    """
    damage: list[CorruptData | Unsupported] = []
    # The newest segment may be empty, behind an unsealed segment.
    may_be_unsealed = True
    for number in reversed(list_segments(folder)):
        if budget is not None:
            budget.check()
        try:
            with open_segment(folder, number, newest=may_be_unsealed) as reader:
                seen.records += len(reader.index)
                seen.bytes_read += os.fstat(reader.fileno()).st_size
                damage[:0] = reader.damaged_entries()
                may_be_unsealed = may_be_unsealed and not len(reader.index)
        except (CorruptData, Unsupported) as error:
            if leader_copied_to(folder, number) is None:
                damage.insert(0, error)
                may_be_unsealed = False
        except NotFound:
            continue
    for each in damage:
        seen.note(each)
    try:
        read_hard_state(folder)
    except (CorruptData, Unsupported) as error:
        seen.note(error)


def examine_wal(wal: str, log_id: str | None, seen: Examination) -> None:
    """Read all files of a WAL, which may have a writer, and add damage to `seen`.

    Counts the entries of `log_id`; `None`: of all logs.
    """
    # Imported only for logs of a store: other logs have no WAL.
    from compactlib.raftlog.wal.frames import read_frames, wal_files

    try:
        seen.records += sum(frame.entries for frame in read_frames(wal, log_id))
    except (CorruptData, Unsupported) as error:
        seen.note(error)
    seen.bytes_read += sum(size for _, size, _ in wal_files(wal))


def _belongs_to_log(name: str) -> bool:
    return (segment_number(name) is not None or compacting_members(name) is not None or is_leftover(name)
            or name in (SNAPSHOT_NAME, HARD_STATE_NAME))
