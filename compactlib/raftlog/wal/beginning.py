"""How a WAL file begins: header, every log by name, and what was not proven durable in the file before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.raftlog.wal.frames import (
    FILE_HEADER_BYTES,
    FileHeader,
    FrameKind,
    empty_body,
    encode_file_header,
    encode_frame,
    log_body,
    run_body,
    salt_of,
    sparse_body,
)
from compactlib.raftlog.wal.recovery import LoggedFrame


def encode_beginning(header: FileHeader, lasts: Mapping[str, int],
                     tail: Sequence[LoggedFrame] = ()) -> tuple[list[bytes], dict[str, int]]:
    """The bytes that a new file is made with, and the numbers it gives to logs.

    Args:
        header: the file's.
        lasts: the last index of every log, -1 if it has none.
        tail: frames of the file before, to be written again.
    """
    salt = salt_of(header)
    pieces = [encode_file_header(header)]
    numbers: dict[str, int] = {}
    for log_id, last in lasts.items():
        numbers[log_id] = len(numbers)
        # No number comes behind the highest index: such a log's last index is said itself.
        ended = last == MAX_INDEX
        pieces += encode_frame(log_body(log_id), log=numbers[log_id], previous=last if ended else None, cuts=False,
                               first=0 if ended else last + 1, term=0, synced_end=FILE_HEADER_BYTES, salt=salt)
    for logged in tail:
        pieces += _again(logged, numbers[logged.log_id], salt)
    return pieces, numbers


def _again(logged: LoggedFrame, number: int, salt: int) -> list[bytes]:
    frame = logged.frame
    match frame.kind:
        case FrameKind.RUN:
            body = run_body(frame.payloads)
        case FrameKind.SPARSE:
            body = sparse_body(frame.indexes, frame.terms, frame.payloads)
        case _:
            body = empty_body(frame.kind)
    return encode_frame(body, log=number, previous=frame.previous, cuts=frame.cuts, first=frame.first,
                        term=frame.term, synced_end=FILE_HEADER_BYTES, salt=salt)
