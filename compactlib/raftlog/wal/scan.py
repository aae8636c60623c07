# SPDX-License-Identifier: Apache-2.0
"""Reading one WAL file: its frames, where it ends, and whether what is not whole was torn by a crash or damaged."""

from __future__ import annotations

import attrs

from compactlib.errors import CorruptData
from compactlib.raftlog.wal.frames import (
    ALIGNMENT,
    FILE_HEADER_BYTES,
    FRAME_MAGIC,
    FileHeader,
    Frame,
    FrameKind,
    decode_body,
    decode_head,
    salt_of,
)


@attrs.frozen
class ScannedFile:
    """The frames of one file.

    Attributes:
        frames: those that count, in order, without marks.
        proven: how many of them are known to be durable: all in a file that has a successor.
        proven_end: where the last of those ends.
        torn_bytes: what lies behind, and behind its mark, up to the last byte that is not zero.
    """

    frames: tuple[Frame, ...]
    proven: int
    proven_end: int
    torn_bytes: int


def scan_file(data: bytes, header: FileHeader, path: str, *, counts_to: int | None = None) -> ScannedFile:
    """Read the frames of a file. O(bytes); the CRC of each is checked.

    Args:
        data: the whole file.
        header: its header, checked.
        path: its name, for messages.
        counts_to: how much of it counts, from its successor; `None` for the newest file, which a crash may have torn.

    Raises:
        CorruptData: bytes changed that were durable.
    """
    salt = salt_of(header)
    frames: list[Frame] = []
    ends: list[int] = []
    proven_end = FILE_HEADER_BYTES
    offset = behind = FILE_HEADER_BYTES
    limit = len(data) if counts_to is None else counts_to
    while offset < limit:
        head = decode_head(data, offset, salt)
        frame = None if head is None else decode_body(head, data, offset)
        if head is None or frame is None:
            break
        proven_end = max(proven_end, frame.synced_end)
        behind = offset + head.frame_bytes
        if frame.kind == FrameKind.MARK:
            break
        offset = behind
        frames.append(frame)
        ends.append(offset)
    if counts_to is not None:
        if offset != counts_to:
            raise CorruptData(path=path, offset=offset, expected=f"whole frames up to {counts_to}, as the next file "
                              f"says", found="a damaged frame" if offset < len(data) else "the end of the file")
        return ScannedFile(tuple(frames), len(frames), offset, _torn_bytes(data, behind))
    _require_torn(data, salt, offset, path)
    proven = sum(end <= proven_end for end in ends)
    return ScannedFile(tuple(frames), proven, ends[proven - 1] if proven else FILE_HEADER_BYTES,
                       _torn_bytes(data, behind))


def _torn_bytes(data: bytes, offset: int) -> int:
    # Zeros are written ahead of the frames.
    return len(data[offset:].rstrip(b"\0"))


def _require_torn(data: bytes, salt: int, offset: int, path: str) -> None:
    """Refuse damage at `offset` if a frame behind it says that the place was durable."""
    place = data.find(FRAME_MAGIC, offset)
    while place >= 0:
        head = decode_head(data, place, salt) if place % ALIGNMENT == 0 else None
        if head is not None and head.synced_end > offset:
            raise CorruptData(path=path, offset=offset, expected=f"a whole frame, since everything up to "
                              f"{head.synced_end} was durable", found="a damaged one")
        place = data.find(FRAME_MAGIC, place + 1)
