# SPDX-License-Identifier: Apache-2.0
"""Segments and snapshots of this format are read as they were meant; earlier ones are refused by name.

`tests/raftlog/segment/test_raftlog_golden.py` writes the golden files.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compactlib.raftlog import DeadEntry, Entry, LogOptions, LogReader, SegmentLimits, SegmentLog

GOLDEN = Path(__file__).parents[1] / "golden" / "raftlog"
FIRST = "0000000000000001.segment"
COMPACTED = [Entry(index, 5, b"entry %d" % index) for index in (2, 3, 7, 12)]


def compacted_log(folder: Path) -> Path:
    with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=4))) as log:
        log.append((index, 5, b"entry %d" % index) for index in range(1, 14))
        log.snapshot(12, live=[2, 3, 7, 12])
        assert not log.compact(policy=log.policy).is_empty
    return folder


@pytest.mark.parametrize(("name", "number", "entries"), [
    ("sealed", 3, [Entry(1, 1, b"one"), Entry(2, 1, b""), Entry(9, 1, b"nine, after a gap"), Entry(10, 2, b"ten"),
                   Entry(2**64 - 1, 2**64 - 1, bytes(range(32)))]),
    ("cut", 3, [Entry(1, 1, b"one"), Entry(2, 1, b""), Entry(9, 1, b"nine, after a gap")]),
    ("unsealed", 4, [Entry(11, 3, b"synced"), Entry(12, 3, b"synced by close")]),
])
def test_segment_is_read(name: str, number: int, entries: list[Entry], tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        for _ in range(number):
            # Each takes back the one before, and begins the next segment.
            log.append([(1, 1, b"one")])
        if name != "unsealed":
            log.end_segment()
        assert [ref.number for ref in log.refs] == [number]
    shutil.copy(GOLDEN / f"{name}.segment", tmp_path / f"{number:016d}.segment")
    with LogReader(tmp_path) as reader:
        assert list(reader.entries()) == entries
        assert reader.verify().is_sound
    with SegmentLog(tmp_path) as log:
        assert list(log.entries()) == entries
        log.audit()


def test_compacted_segment_is_written_alike(tmp_path: Path) -> None:
    assert (compacted_log(tmp_path) / FIRST).read_bytes() == (GOLDEN / "compacted.segment").read_bytes()


def test_compacted_segment_is_read(tmp_path: Path) -> None:
    folder = compacted_log(tmp_path)
    (folder / FIRST).write_bytes((GOLDEN / "compacted.segment").read_bytes())
    with LogReader(folder) as reader:
        assert [entry for entry in reader.entries() if entry.index <= 12] == COMPACTED
        assert reader.read(5) == DeadEntry(5, 12)
