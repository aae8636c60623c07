"""The compaction log on disk: the file `COMPACTION`, and the history of those that are done.

```
0   magic b"CLBLOBCO"     12  CRC of the body (u32)     24  body: see `docs/formats/blobstore-compaction-log.md`
8   version 1 (u16)       16  length of the body (u64)
10  0 (u16)
```

The file is there as long as a compaction is in progress, and is replaced as a whole at each step (temporary name, sync,
rename, sync of the folder): whoever finds it finds all of it. When the compaction is over, it gets the name
`compaction-<number>.done`, so that its end is one rename. What a name says is only its number; times are inside.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

from compactlib.blobstore.compaction_log import CompactionLog, Cycle, Move, Target
from compactlib.blobstore.names import LogPosition, SegmentName
from compactlib.checksum import crc32
from compactlib.errors import CompactlibError, CorruptData, StorageError, Unsupported
from compactlib.files import Files, StrPath, list_folder, write_durably

LOG_NAME = "COMPACTION"
"""The file of the compaction in progress."""
TEMPORARY_SUFFIX = ".tmp"
MAGIC = b"CLBLOBCO"
VERSION = 1

_HEAD = struct.Struct("<8sHHIQ")
_FIXED = struct.Struct("<QqqBBHIII")
_NAME = struct.Struct("<QQ")
_PLACE = struct.Struct("<QQQ")
_TARGET = struct.Struct("<QQQQII")
_CYCLE = struct.Struct("<IIIIBxxxQqqqq")
_OFFSET = struct.Struct("<Q")
_UNSET = -1
_DONE_NAME = re.compile(r"compaction-([0-9]{16})\.done")


def done_name(number: int) -> str:
    """The name under which the history keeps the compaction whose first cycle has this number."""
    return f"compaction-{number:016d}.done"


def encode_log(log: CompactionLog) -> bytes:
    """The bytes of the file."""
    parts = [_FIXED.pack(log.number, log.started_ms, log.reference_ms, log.is_full, log.dropped, 0,
                         log.swap_segments, len(log.victims), len(log.left_out))]
    parts += [_NAME.pack(*name) for name in (*log.victims, *log.left_out)]
    parts.append(struct.pack("<I", len(log.cycles)))
    for cycle in log.cycles:
        parts += _encode_cycle(cycle)
    body = b"".join(parts)
    return _HEAD.pack(MAGIC, VERSION, 0, crc32(body, 0), len(body)) + body


def _encode_cycle(cycle: Cycle) -> Iterable[bytes]:
    times = (_UNSET if time is None else time
             for time in (cycle.copy_started_ms, cycle.commit_started_ms, cycle.cleanup_started_ms, cycle.ended_ms))
    yield _CYCLE.pack(len(cycle.sources), len(cycle.planned), len(cycle.targets), len(cycle.moves),
                      cycle.partial is not None, cycle.copied_bytes, *times)
    if cycle.partial is not None:
        yield _PLACE.pack(*cycle.partial.segment, cycle.partial.offset)
    for name in (*cycle.sources, *cycle.planned):
        yield _NAME.pack(*name)
    for target in cycle.targets:
        yield _TARGET.pack(*target.name, target.end, target.entries, target.crc32, len(target.index_starts))
        yield struct.pack(f"<{len(target.index_starts)}Q", *target.index_starts)
    for move in cycle.moves:
        yield _PLACE.pack(*move.before.segment, move.before.offset)
        yield _PLACE.pack(*move.after.segment, move.after.offset)


def decode_log(data: bytes, path: str) -> CompactionLog:
    """The inverse of `encode_log`.

    Raises:
        CorruptData: any check fails.
        Unsupported: written by a later release.
    """
    if len(data) < _HEAD.size:
        raise CorruptData(path=path, offset=len(data), expected=f"at least {_HEAD.size} bytes",
                          found=f"{len(data)} bytes")
    magic, version, zero, stored, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(path=path, offset=0, expected=f"magic {MAGIC!r}", found=repr(magic))
    body = data[_HEAD.size:]
    if version == VERSION and (len(body), crc32(body, 0), zero) != (length, stored, 0):
        raise CorruptData(path=path, offset=12, expected=f"{length} bytes with CRC {stored:#010x}",
                          found=f"{len(body)} bytes with CRC {crc32(body, 0):#010x}")
    if version != VERSION:
        raise Unsupported(f"{path}: compaction log version {version}; this release reads {VERSION}: upgrade")
    try:
        log = _decode_body(_Cursor(body))
        log.audit()
    except (struct.error, ValueError, CompactlibError) as error:
        raise CorruptData(path=path, offset=_HEAD.size, expected="a compaction log under its valid CRC",
                          found=str(error)) from None
    return log


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def many(self, count: int, item: Callable[[], Any]) -> tuple[Any, ...]:
        # A count that lies cannot make this long: each item needs bytes that must be there.
        return tuple(item() for _ in range(count))

    def name(self) -> SegmentName:
        return SegmentName(*self.take(_NAME))

    def place(self) -> LogPosition:
        position, generation, offset = self.take(_PLACE)
        return LogPosition(SegmentName(position, generation), offset)

    def move(self) -> Move:
        return Move(self.place(), self.place())

    def target(self) -> Target:
        position, generation, end, entries, crc, starts = self.take(_TARGET)
        return Target(SegmentName(position, generation), end, entries, crc,
                      tuple(self.take(_OFFSET)[0] for _ in range(starts)))

    def cycle(self) -> Cycle:
        sources, planned, targets, moves, has_partial, copied, *times = self.take(_CYCLE)
        commit, cleanup, ended = (None if time == _UNSET else time for time in times[1:])
        return Cycle(partial=self.place() if has_partial else None, sources=self.many(sources, self.name),
                     planned=self.many(planned, self.name), targets=self.many(targets, self.target),
                     moves=self.many(moves, self.move), copied_bytes=copied, copy_started_ms=times[0],
                     commit_started_ms=commit, cleanup_started_ms=cleanup, ended_ms=ended)


def _decode_body(cursor: _Cursor) -> CompactionLog:
    number, started, reference, is_full, dropped, _, swaps, victims, left_out = cursor.take(_FIXED)
    names = cursor.many(victims, cursor.name)
    damaged = cursor.many(left_out, cursor.name)
    (count,) = cursor.take(struct.Struct("<I"))
    cycles = cursor.many(count, cursor.cycle)
    if cursor.at != len(cursor.data):
        raise ValueError(f"{len(cursor.data) - cursor.at} bytes too many")
    return CompactionLog(number=number, started_ms=started, reference_ms=reference, is_full=bool(is_full),
                         swap_segments=swaps, victims=names, left_out=damaged, cycles=cycles, dropped=bool(dropped))


def read_log(folder: StrPath) -> CompactionLog | None:
    """The compaction in progress in a store's folder, or `None`.

    Raises:
        CorruptData: the file is damaged.
        Unsupported: written by a later release.
        StorageError: it cannot be read.
    """
    return _read(os.path.join(folder, LOG_NAME))


def _read(path: str) -> CompactionLog | None:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    return decode_log(data, path)


def write_log(files: Files, folder: StrPath, log: CompactionLog) -> None:
    """Make this step durable.

    Raises:
        StorageError: the disk refused; the step before is what counts, unless only the sync of the folder was refused.
    """
    write_durably(files, os.path.join(folder, LOG_NAME), [encode_log(log)], temporary_suffix=TEMPORARY_SUFFIX)


def close_log(files: Files, folder: StrPath, log: CompactionLog) -> None:
    """End the compaction: its log goes to the history, or goes away if it never committed anything.

    What was removed before is made durable first: without the log nobody would remove it again.

    Raises:
        StorageError: the disk refused; call again.
    """
    path = os.path.join(folder, LOG_NAME)
    if log.committed:
        files.sync_folder(folder)
        files.rename(path, os.path.join(folder, done_name(log.number)))
    else:
        files.unlink(path)
    files.sync_folder(folder)


def read_history(folder: StrPath) -> list[CompactionLog]:
    """The compactions that are over and still known, oldest first. Damaged files are left out (see `damaged_history`).

    Raises:
        StorageError: a file cannot be read.
    """
    return [log for _, log in _history(folder) if isinstance(log, CompactionLog)]


def damaged_history(folder: StrPath) -> list[CorruptData]:
    """What is wrong with files of the history; nothing but token rebuilding and reports depends on them."""
    return [log for _, log in _history(folder) if isinstance(log, CorruptData)]


def _history(folder: StrPath) -> Iterable[tuple[str, CompactionLog | CorruptData]]:
    for name in list_folder(folder):
        if _DONE_NAME.fullmatch(name):
            try:
                log = _read(os.path.join(folder, name))
            except CorruptData as error:
                yield name, error
            else:
                if log is not None:
                    yield name, log


def next_number(folder: StrPath) -> int:
    """The number of the next compaction of the store: one more than the cycles ever committed."""
    newest = 0
    for name in list_folder(folder):
        if found := _DONE_NAME.fullmatch(name):
            newest = max(newest, int(found[1]))
    if not newest:
        return 1
    try:
        log = _read(os.path.join(folder, done_name(newest)))
    except CorruptData:
        log = None
    # A damaged file hides how many cycles it had: leave more room than any has.
    return newest + (1 << 20) if log is None else log.next_number


def prune_history(files: Files, folder: StrPath, before_ms: int) -> list[str]:
    """Remove the logs of compactions that were started before `before_ms`; never the newest, which holds the number.

    Returns the names removed.

    Raises:
        StorageError: the disk refused; what is left is tried again the next time.
    """
    known = list(_history(folder))
    old = [name for name, log in known[:-1] if isinstance(log, CompactionLog) and log.started_ms < before_ms]
    for name in old:
        files.unlink(os.path.join(folder, name))
    return old
