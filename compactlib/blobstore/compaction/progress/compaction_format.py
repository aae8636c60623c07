# SPDX-License-Identifier: Apache-2.0
"""The bytes of a compaction log: the whole state of a compaction, and the steps that were appended to it.

```
0   magic b"CLBLOBCO"     12  CRC of the body (u32)     24       body: the compaction when the file was begun
8   version 4 (u16)       16  length of the body (u64)  24+len   steps, one after the other, up to the end of the file
10  0 (u16)
```

A step says which cycles it leaves as they are, and what follows them, so that its length depends on one cycle, not on
the compaction. Its CRC begins with that of the body and the step's number, so that no other file's step, and none of
another place, is taken for it. See `docs/formats/blobstore-compaction-log.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Cycle, Target
from compactlib.blobstore.model.names import LogPosition, SegmentName
from compactlib.errors import CompactlibError, CorruptData
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import BodyFrame

MAGIC = b"CLBLOBCO"
VERSION = 4

_FRAME = BodyFrame("compaction log", MAGIC, VERSION)
_FIXED = struct.Struct("<QqqBBHIII")
_NAME = struct.Struct("<QQ")
_PLACE = struct.Struct("<QQQ")
_TARGET = struct.Struct("<QQQQII")
_CYCLE = struct.Struct("<IIIBxxxQqqqq")
_OFFSET = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_STEP = struct.Struct("<II")
"""Length and CRC of a step's body."""
_STEP_BODY = struct.Struct("<II")
"""How many cycles stay, and how many follow."""
_STEP_SALT = struct.Struct("<III")
_UNSET = -1


@attrs.frozen
class StoredLog:
    """A compaction log as a file holds it.

    Attributes:
        log: the compaction after the last whole step.
        body_crc: with which the CRC of each step begins.
        steps: how many steps there are.
        end: the offset behind the last of them.
        torn_bytes: bytes behind that, of a step that was never finished.
    """

    log: CompactionLog
    body_crc: int
    steps: int
    end: int
    torn_bytes: int = 0


    @classmethod
    def whole(cls, log: CompactionLog, data: bytes) -> StoredLog:
        """What `encode_log` has made of a log."""
        return cls(log, _FRAME.decode(data, "a compaction log")[1], 0, len(data))


def encode_log(log: CompactionLog) -> bytes:
    """The bytes of a file without steps."""
    parts = [_FIXED.pack(*_fixed(log)[:-2], len(log.victims), len(log.left_out))]
    parts += [_NAME.pack(*name) for name in (*log.victims, *log.left_out)]
    parts.append(_COUNT.pack(len(log.cycles)))
    for cycle in log.cycles:
        parts += _encode_cycle(cycle)
    return _FRAME.encode(b"".join(parts))


def encode_step(stored: StoredLog, log: CompactionLog) -> bytes | None:
    """The bytes that make `log` of what is stored; `None` if no step can: then the file is written anew."""
    before = stored.log
    kept = max(len(before.cycles) - 1, 0)
    if log.cycles[:kept] != before.cycles[:kept] or _fixed(log) != _fixed(before):
        return None
    cycles = log.cycles[kept:]
    body = b"".join((_STEP_BODY.pack(kept, len(cycles)), *(part for cycle in cycles for part in _encode_cycle(cycle))))
    return _STEP.pack(len(body), _step_crc(stored.body_crc, stored.steps, body)) + body


def most_log_bytes(*, victims: int, outputs: int, swap_segments: int, index_files: int) -> int:
    """The most that the file of a compaction grows to, if no victim is damaged and it is decided and carried out once.

    Args:
        victims: how many segments it takes.
        outputs: how many it writes, at most.
        swap_segments: how many of them a cycle writes, at most.
        index_files: of all outputs, at most.
    """
    cycles = max(-(-outputs // swap_segments), 1)
    # A cycle is written when it begins, at each safe point before its last, and when it commits, cleans up and ends.
    times = max(min(swap_segments, outputs), 1) + 3
    once = (cycles * (_STEP.size + _STEP_BODY.size + _CYCLE.size + _PLACE.size) + (victims + outputs) * _NAME.size
            + outputs * _TARGET.size + index_files * _OFFSET.size)
    return _FRAME.header_bytes + _FIXED.size + victims * _NAME.size + _COUNT.size + times * once


def _fixed(log: CompactionLog) -> tuple[Any, ...]:
    """All but the cycles."""
    return (log.number, log.started_ms, log.reference_ms, log.is_full, log.dropped, 0, log.swap_segments, log.victims,
            log.left_out)


def _step_crc(body_crc: int, number: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(_STEP_SALT.pack(body_crc, number, len(body)), 0))


def _encode_cycle(cycle: Cycle) -> Iterable[bytes]:
    times = (_UNSET if time is None else time
             for time in (cycle.copy_started_ms, cycle.commit_started_ms, cycle.cleanup_started_ms, cycle.ended_ms))
    yield _CYCLE.pack(len(cycle.sources), len(cycle.planned), len(cycle.targets), cycle.partial is not None,
                      cycle.copied_bytes, *times)
    if cycle.partial is not None:
        yield _PLACE.pack(*cycle.partial.segment, cycle.partial.offset)
    for name in (*cycle.sources, *cycle.planned):
        yield _NAME.pack(*name)
    for target in cycle.targets:
        yield _TARGET.pack(*target.name, target.end, target.entries, target.crc32, len(target.index_starts))
        yield struct.pack(f"<{len(target.index_starts)}Q", *target.index_starts)


def decode_log(data: bytes, path: str) -> StoredLog:
    """The inverse of `encode_log` and of the steps behind it.

    What is left of the last step after a crash counts as never written; in the middle of the file, it is damage.

    Raises:
        CorruptData: any check fails.
        Unsupported: another release wrote it.
    """
    body, stored = _FRAME.decode(data, path)
    at = _FRAME.header_bytes
    try:
        found = StoredLog(_decode_body(_Cursor(body)), stored, 0, at + len(body))
        while True:
            at = found.end
            step = _step_at(data, at, stored, found.steps)
            if step is None:
                break
            found = _taken(found, step)
        found.log.audit()
    except (struct.error, ValueError, CompactlibError) as error:
        raise CorruptData(path=path, offset=at, expected="a compaction log under its valid CRC",
                          found=str(error)) from None
    if _has_step_behind(data, found):
        raise CorruptData(path=path, offset=found.end, expected=f"step {found.steps} of the compaction",
                          found="bytes that are none, and whole steps behind them")
    return attrs.evolve(found, torn_bytes=len(data) - found.end)


def _step_at(data: bytes, at: int, body_crc: int, number: int) -> bytes | None:
    """The body of a step, if a whole one with this number is there."""
    if at + _STEP.size > len(data):
        return None
    length, stored = _STEP.unpack_from(data, at)
    start = at + _STEP.size
    if length < _STEP_BODY.size or start + length > len(data):
        return None
    body = data[start:start + length]
    return body if _step_crc(body_crc, number, body) == stored else None


def _has_step_behind(data: bytes, found: StoredLog) -> bool:
    """Whether the step after the one that is missing is there: then that one was whole once."""
    return any(_step_at(data, at, found.body_crc, found.steps + 1) is not None
               for at in range(found.end + 1, len(data) - _STEP.size))


def _taken(found: StoredLog, body: bytes) -> StoredLog:
    cursor = _Cursor(body)
    kept, count = cursor.take(_STEP_BODY)
    if kept > len(found.log.cycles):
        raise ValueError(f"step {found.steps} keeps {kept} of {len(found.log.cycles)} cycles")
    cycles = (*found.log.cycles[:kept], *cursor.many(count, cursor.cycle))
    cursor.check_end()
    return StoredLog(attrs.evolve(found.log, cycles=cycles), found.body_crc, found.steps + 1,
                     found.end + _STEP.size + len(body))


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

    def target(self) -> Target:
        position, generation, end, entries, crc, starts = self.take(_TARGET)
        return Target(SegmentName(position, generation), end, entries, crc,
                      tuple(self.take(_OFFSET)[0] for _ in range(starts)))

    def cycle(self) -> Cycle:
        sources, planned, targets, has_partial, copied, *times = self.take(_CYCLE)
        commit, cleanup, ended = (None if time == _UNSET else time for time in times[1:])
        return Cycle(partial=self.place() if has_partial else None, sources=self.many(sources, self.name),
                     planned=self.many(planned, self.name), targets=self.many(targets, self.target),
                     copied_bytes=copied, copy_started_ms=times[0], commit_started_ms=commit,
                     cleanup_started_ms=cleanup, ended_ms=ended)

    def check_end(self) -> None:
        if self.at != len(self.data):
            raise ValueError(f"{len(self.data) - self.at} bytes too many")


def _decode_body(cursor: _Cursor) -> CompactionLog:
    number, started, reference, is_full, dropped, _, swaps, victims, left_out = cursor.take(_FIXED)
    names = cursor.many(victims, cursor.name)
    damaged = cursor.many(left_out, cursor.name)
    (count,) = cursor.take(_COUNT)
    cycles = cursor.many(count, cursor.cycle)
    cursor.check_end()
    return CompactionLog(number=number, started_ms=started, reference_ms=reference, is_full=bool(is_full),
                         swap_segments=swaps, victims=names, left_out=damaged, cycles=cycles, dropped=bool(dropped))
