# SPDX-License-Identifier: Apache-2.0
"""Reads the WAL files of a store: which frames count, where each file ends, and what is torn or damaged.

Files have consecutive numbers, and the header of each file has the durable size of its predecessor. So only the newest
file can have a torn end. Its last batch, which no later frame proves durable, is repeated in the next file. An
incomplete frame in the newest file was torn by a crash, unless a frame behind it proves that the place was durable:
then it is damage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from itertools import chain, pairwise

import attrs

from compactlib.errors import CorruptData, StorageError
from compactlib.files.disk import StrPath, list_folder
from compactlib.raftlog.wal.frames import (
    ALIGNMENT,
    FILE_HEADER_BYTES,
    FRAME_MAGIC,
    FileHeader,
    Frame,
    FrameKind,
    decode_frame,
    synced_end_at,
    wal_name,
    wal_number,
)


@attrs.frozen
class RecoveredWal:
    """The content of a store's WAL files.

    Attributes:
        numbers: the numbers of the files, ascending.
        last_end: proven durable size of the newest file.
        frames: by log, every frame that counts, in the order of writing.
        unproven: the last frames, which are not proven durable, with the ids of their logs.
    """

    numbers: tuple[int, ...] = ()
    last_end: int = 0
    frames: Mapping[str, list[Frame]] = attrs.field(factory=dict)
    unproven: tuple[tuple[str, Frame], ...] = ()

    @property
    def last_number(self) -> int:
        """The number of the newest file; 0 without files."""
        return self.numbers[-1] if self.numbers else 0


def read_wal(folder: StrPath) -> RecoveredWal:
    """Read the WAL files in `folder`. O(bytes); the CRC of each frame is checked.

    Raises:
        CorruptData: a file is missing between two others, or damaged in its durable part.
        Unsupported: a file was written by a later release.
        StorageError: the disk refused.
    """
    numbers = sorted(number for name in list_folder(folder) if (number := wal_number(name)) is not None)
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise CorruptData(path=os.path.join(folder, wal_name(before + 1)), offset=0, expected="a WAL file, since "
                              f"{wal_name(before)} and {wal_name(after)} exist", found="no file")
    headers = [_header(folder, number) for number in numbers]
    frames: dict[str, list[Frame]] = {}
    unproven: list[tuple[str, Frame]] = []
    end = 0
    counts = [*(header.previous_end for header in headers[1:]), None]
    for header, counts_to in zip(headers, counts, strict=False):
        path = os.path.join(folder, wal_name(header.number))
        placed, end = _scan(_read(path), header.salt, path, counts_to)
        ids: dict[int, str] = {}
        at = FILE_HEADER_BYTES
        for frame, log in placed:
            if frame.kind == FrameKind.LOG:
                ids[log] = frame.data.decode()
                if frame.cuts:
                    frames.pop(ids[log], None)
            elif log not in ids:
                raise CorruptData(path=path, offset=at, expected="a frame of a log that the file names",
                                  found=f"a frame of log number {log}")
            else:
                frames.setdefault(ids[log], []).append(frame)
                if at >= end:
                    unproven.append((ids[log], frame))
            at += frame.frame_bytes
    return RecoveredWal(tuple(numbers), end, frames, tuple(unproven))


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
            frames = read_wal(wal).frames
            return tuple(chain.from_iterable(frames.values()) if log_id is None else frames.get(log_id, ()))
        except (CorruptData, StorageError):
            # A flush may have removed a file, or a batch was being written: only a repeated failure is damage.
            if seen == before == wal_files(wal):
                raise
            seen = before


def wal_files(wal: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of change of the files; the times because frames may overwrite zeros."""
    listed = []
    for name in list_folder(wal):
        with contextlib.suppress(OSError):
            found = os.stat(os.path.join(wal, name))
            listed.append((name, found.st_size, found.st_mtime_ns))
    return listed


def _scan(data: bytes, salt: int, path: str, counts_to: int | None) -> tuple[list[tuple[Frame, int]], int]:
    """The frames of a file that count, without marks; see the head of this file.

    Args:
        data: the whole file.
        salt: the salt of the file.
        path: its name, for messages.
        counts_to: its durable size, from its successor; `None` for the newest file.

    Returns:
        The frames, with the numbers of their logs; the end of those that are proven durable.
    """
    found: list[tuple[Frame, int]] = []
    ends = [FILE_HEADER_BYTES]
    proven_end = offset = FILE_HEADER_BYTES
    limit = len(data) if counts_to is None else counts_to
    while offset < limit and (decoded := decode_frame(data, offset, salt)) is not None:
        frame, log, synced_end = decoded
        proven_end = max(proven_end, synced_end)
        if frame.kind == FrameKind.MARK:
            break
        offset += frame.frame_bytes
        found.append((frame, log))
        ends.append(offset)
    if counts_to is not None:
        if offset != counts_to:
            raise CorruptData(path=path, offset=offset, expected=f"whole frames up to {counts_to}, the size in the "
                              f"next file", found="a damaged frame" if offset < len(data) else "the end of the file")
        return found, offset
    place = data.find(FRAME_MAGIC, offset)
    while place >= 0:
        durable = synced_end_at(data, place, salt) if place % ALIGNMENT == 0 else None
        if durable is not None and durable > offset:
            raise CorruptData(path=path, offset=offset, expected=f"a whole frame, since everything up to {durable} was "
                              f"durable", found="a damaged frame")
        place = data.find(FRAME_MAGIC, place + 1)
    return found, max(end for end in ends if end <= proven_end)


def _header(folder: StrPath, number: int) -> FileHeader:
    path = os.path.join(folder, wal_name(number))
    header = FileHeader.decode(_read(path, FILE_HEADER_BYTES), path)
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
