# SPDX-License-Identifier: Apache-2.0
"""What the WAL files of a store hold when it is opened.

Files have consecutive numbers, and each says in its header how much of the one before counts. So only the newest can
have a torn end; its last batch, of which nothing says that it was durable, is written anew into the next file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, pairwise

import attrs

from compactlib.errors import CorruptData, StorageError
from compactlib.files.disk import Files, StrPath, list_folder
from compactlib.raftlog.wal.frames import FILE_HEADER_BYTES, FileHeader, Frame, FrameKind, decode_file_header
from compactlib.raftlog.wal.names import is_wal_leftover, wal_name, wal_number
from compactlib.raftlog.wal.scan import ScannedFile, scan_file


@attrs.frozen
class LoggedFrame:
    """A frame, the log it belongs to, and the number of the file it was found in."""

    log_id: str
    frame: Frame
    file: int


@attrs.frozen
class RecoveredWal:
    """What was found.

    Attributes:
        numbers: of the files, ascending.
        last_number: of the newest file ever, as far as is known; 0 if there is none.
        last_end: how much of the newest file is known to be durable.
        frames: every frame that counts, in the order of writing; those that only name logs are left out.
        unproven: how many of the last ones are not known to be durable.
        lasts: the last index of each log that the files name, -1 if none.
        torn_bytes: what was left out at the end of the newest file.
    """

    numbers: tuple[int, ...] = ()
    last_number: int = 0
    last_end: int = 0
    frames: tuple[LoggedFrame, ...] = ()
    unproven: int = 0
    lasts: dict[str, int] = attrs.field(factory=dict)
    torn_bytes: int = 0


def recover_wal(files: Files, folder: StrPath) -> RecoveredWal:
    """Read the WAL files in `folder`; removes only what was never put in place. O(bytes).

    Raises:
        CorruptData: a file is missing between two others, or damaged in what was durable.
        Unsupported: a file was written by a later release.
        StorageError: the disk refused.
    """
    names = list_folder(folder)
    for path in [os.path.join(folder, name) for name in names if is_wal_leftover(name)]:
        files.unlink(path)
    numbers = sorted(number for name in names if (number := wal_number(name)) is not None)
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise CorruptData(path=os.path.join(folder, wal_name(before + 1)), offset=0, expected="a WAL file, since "
                              f"{wal_name(before)} and {wal_name(after)} are there", found="none")
    headers = [_header(folder, number) for number in numbers]
    frames: list[LoggedFrame] = []
    lasts: dict[str, int] = {}
    unproven, torn, end = 0, 0, 0
    for place, number in enumerate(numbers):
        newest = place == len(numbers) - 1
        counts_to = None if newest else headers[place + 1].previous_end
        path = os.path.join(folder, wal_name(number))
        scanned = scan_file(_read(path), headers[place], path, counts_to=counts_to)
        logged = list(_logged(scanned.frames, lasts, path, number))
        frames.extend(each for each in logged if each.frame.kind != FrameKind.LOG)
        if newest:
            unproven = _writes(scanned, scanned.proven)
            torn, end = scanned.torn_bytes, scanned.proven_end
    return RecoveredWal(tuple(numbers), max(numbers, default=0), end, tuple(frames), unproven, lasts, torn)


def _writes(scanned: ScannedFile, start: int) -> int:
    return sum(frame.kind != FrameKind.LOG for frame in scanned.frames[start:])


def without_repeats(frames: Iterable[LoggedFrame]) -> list[LoggedFrame]:
    """The frames of logs that could not be opened, once: each file begins with all that those before it have of them.

    What a file repeats takes the place of what was found before. Those of one log stay in order. O(bytes).
    """
    kept: dict[str, list[LoggedFrame]] = {}
    for _, in_file in groupby(frames, key=lambda each: each.file):
        found: dict[str, list[LoggedFrame]] = {}
        for each in in_file:
            found.setdefault(each.log_id, []).append(each)
        for log_id, here in found.items():
            before = kept.get(log_id, [])
            repeats = list(map(_written, here[:len(before)])) == list(map(_written, before))
            kept[log_id] = here if repeats else [*before, *here]
    return list(chain.from_iterable(kept.values()))


def _written(logged: LoggedFrame) -> Frame:
    """The frame without what depends on the place it has in its file."""
    return attrs.evolve(logged.frame, log=0, synced_end=0)


def _logged(frames: tuple[Frame, ...], lasts: dict[str, int], path: str, file: int) -> Iterator[LoggedFrame]:
    ids: dict[int, str] = {}
    for frame in frames:
        if frame.kind == FrameKind.LOG:
            ids[frame.log] = frame.payloads[0].decode()
            lasts[ids[frame.log]] = frame.first - 1 if frame.previous is None else frame.previous
        elif frame.log not in ids:
            raise CorruptData(path=path, offset=FILE_HEADER_BYTES, expected="frames of the logs that the file names",
                              found=f"one of log number {frame.log}")
        yield LoggedFrame(ids[frame.log], frame, file)
        lasts[ids[frame.log]] = last_index_after(frame, lasts[ids[frame.log]])


def last_index_after(frame: Frame, last: int) -> int:
    """The last index of a log once `frame` is written to it."""
    match frame.kind:
        case FrameKind.RUN:
            return frame.first + len(frame.payloads) - 1
        case FrameKind.SPARSE:
            return frame.indexes[-1]
        case FrameKind.CUT:
            return min(last, -1 if frame.previous is None else frame.previous)
        case _:
            return last


def _header(folder: StrPath, number: int) -> FileHeader:
    path = os.path.join(folder, wal_name(number))
    header = decode_file_header(_read(path, FILE_HEADER_BYTES), path)
    if header.number != number:
        raise CorruptData(path=path, offset=16, expected=f"number {number} as in the file name",
                          found=str(header.number))
    return header


def _read(path: str, size: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
