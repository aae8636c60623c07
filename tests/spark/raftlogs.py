# SPDX-License-Identifier: Apache-2.0
"""Logs for the Spark tests, and what their rows have to be, told by the log's own readers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from compactlib.raftlog import DeadEntry, LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.raftlog.segment.reader import SegmentReader


def build_log(folder: Path, *, entries: int = 180, max_entries: int = 50, snapshot: int | None = 100,
              seed: int = 1) -> Path:
    """A log with empty and random payloads, overwritten entries and a gap; a third below the snapshot is live."""
    rng = random.Random(seed)
    with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=max_entries))) as log:
        log.append((index, 1, rng.randbytes(index % 37)) for index in range(1, entries + 1))
        log.append((index, 2, b"again %d" % index) for index in range(entries - 9, entries + 11))
        log.append([(entries + 1000, 3, b"behind a gap")])
        if snapshot is not None:
            log.snapshot(snapshot, live=sorted(rng.sample(range(1, snapshot + 1), snapshot // 3)))
    return folder


def expected_rows(folder: Path, first: int = 0, last: int = (1 << 63) - 1) -> list[dict[str, Any]]:
    """The rows of a sound log, by index, as its own readers tell them; offsets are looked up in the files."""
    rows = []
    with LogReader(folder) as log:
        for ref in log.refs:
            path = folder / f"{ref.number:016d}.segment"
            data = path.read_bytes()
            with SegmentReader(path) as reader:
                lengths = {index: place for index, *place in zip(
                    reader.index.columns.indexes, reader.index.columns.offsets, reader.index.columns.lengths,
                    strict=True)}
                for entry in reader.scan(max(first, ref.first), min(last, ref.last)):
                    assert not hasattr(entry, "error"), "the log should be sound"
                    offset, length = lengths[entry.index]
                    assert data[offset:offset + length] == entry.payload
                    rows.append({"store": str(folder), "segment": ref.number, "index": entry.index, "term": entry.term,
                                 "offset": offset,
                                 "length": length, "live": not isinstance(log.read(entry.index), DeadEntry),
                                 "payload": entry.payload})
    return rows


def flip_byte(path: Path, offset: int) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)
