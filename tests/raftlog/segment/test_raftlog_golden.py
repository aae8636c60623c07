# SPDX-License-Identifier: Apache-2.0
"""The formats are promises: files are read as they were meant, and written alike; earlier versions are refused by name.

`python -m tests.raftlog.segment.test_raftlog_golden` writes the golden files; a change in one of them is a new
format
version, or a mistake.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.files import LocalFiles
from compactlib.indexset import IndexSet
from compactlib.raftlog import DeadEntry, Entry, LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter, cut_segment
from compactlib.raftlog.snapshot_meta import (
    SnapshotManifest,
    SnapshotMeta,
    read_snapshot_meta,
    write_snapshot_meta,
)

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "raftlog"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "raftlog-segment.md"
SNAPSHOT_PAGE = PAGE.parent / "raftlog-snapshot.md"

LIMITS = SegmentLimits(max_entries=8, max_bytes=1000)
WRITTEN = [(1, 1, b"one"), (2, 1, b""), (9, 1, b"nine, after a gap"), (10, 2, b"ten"),
           (2**64 - 1, 2**64 - 1, bytes(range(32)))]
READ = [Entry(*row) for row in WRITTEN]


def write_sealed(folder: Path) -> Path:
    with SegmentWriter.create(LocalFiles(), folder, 3, LIMITS) as writer:
        for row in WRITTEN:
            writer.append(*row)
        writer.seal()
        return Path(writer.path)


def write_cut(folder: Path) -> Path:
    path = write_sealed(folder)
    cut_segment(LocalFiles(), folder, 3, 9)
    return path


def write_unsealed(folder: Path) -> Path:
    with SegmentWriter.create(LocalFiles(), folder, 4, LIMITS) as writer:
        writer.append(11, 3, b"synced")
        writer.sync()
        writer.append(12, 3, b"synced by close")
        return Path(writer.path)


def write_compacted(folder: Path) -> Path:
    with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=4))) as log:
        log.append((index, 5, b"entry %d" % index) for index in range(1, 14))
        log.snapshot(12, live=[2, 3, 7, 12])
        assert not log.compact(policy=log.policy).is_empty
    return folder / "0000000000000001.segment"


def write_snapshot(folder: Path) -> Path:
    live = IndexSet.from_runs([(1, 3), (500, 500), (998, 999)])
    write_snapshot_meta(LocalFiles(), folder, SnapshotMeta(1000, live=live))
    return folder / "SNAPSHOT"


def write_empty_snapshot(folder: Path) -> Path:
    write_snapshot_meta(LocalFiles(), folder, SnapshotMeta(7, live=IndexSet()))
    return folder / "SNAPSHOT"


LIVE = IndexSet.from_sorted([5, 10, 15])
WITH_STATE = SnapshotMeta(16, 2, LIVE, manifest=SnapshotManifest(
    index=16, term=2, state_bytes=14, state_crc=0x68686C46, attempt=1).with_live(LIVE))


def write_snapshot_with_state(folder: Path) -> Path:
    write_snapshot_meta(LocalFiles(), folder, WITH_STATE)
    return folder / "SNAPSHOT"


WRITERS: dict[str, Callable[[Path], Path]] = {
    "sealed.segment": write_sealed,
    "cut.segment": write_cut,
    "unsealed.segment": write_unsealed,
    "compacted.segment": write_compacted,
    "SNAPSHOT": write_snapshot,
    "SNAPSHOT.empty": write_empty_snapshot,
    "SNAPSHOT.state": write_snapshot_with_state,
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_bytes_are_written_today(name: str, tmp_path: Path) -> None:
    assert WRITERS[name](tmp_path).read_bytes() == (GOLDEN / name).read_bytes()


def test_a_sealed_segment_with_a_gap_and_an_empty_payload_is_read() -> None:
    with SegmentReader(GOLDEN / "sealed.segment", sealed=True, number=3) as reader:
        assert list(reader.scan()) == READ
        assert (len(reader.index), reader.loaded.seal.sealed) == (5, True)


def test_a_cut_segment_is_read_up_to_the_cut() -> None:
    with SegmentReader(GOLDEN / "cut.segment", sealed=True, number=3) as reader:
        assert list(reader.scan()) == READ[:3]
        assert (len(reader.index), reader.loaded.seal.sealed) == (3, True)


def test_a_segment_left_open_is_read() -> None:
    with SegmentReader(GOLDEN / "unsealed.segment", number=4) as reader:
        assert list(reader.scan()) == [Entry(11, 3, b"synced"), Entry(12, 3, b"synced by close")]
        assert not reader.loaded.seal.sealed


def test_a_compacted_segment_is_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "compacted.segment", tmp_path / "0000000000000001.segment")
    write_snapshot_meta(LocalFiles(), tmp_path, SnapshotMeta(12, live=IndexSet.from_sorted([2, 3, 7, 12])))
    SegmentWriter.create(LocalFiles(), tmp_path, 4).close()
    with LogReader(tmp_path) as log:
        assert list(log.entries()) == [Entry(index, 5, b"entry %d" % index) for index in (2, 3, 7, 12)]
        assert log.read(5) == DeadEntry(5, 12)


@pytest.mark.parametrize(("name", "state"), [
    ("SNAPSHOT", SnapshotMeta(1000, live=IndexSet.from_runs([(1, 3), (500, 500), (998, 999)]))),
    ("SNAPSHOT.empty", SnapshotMeta(7, live=IndexSet())),
    ("SNAPSHOT.state", WITH_STATE),
])
def test_a_snapshot_meta_is_read(name: str, state: SnapshotMeta, tmp_path: Path) -> None:
    shutil.copy(GOLDEN / name, tmp_path / "SNAPSHOT")
    assert read_snapshot_meta(tmp_path) == state


def test_the_page_of_snapshots_shows_the_golden_file() -> None:
    shown = SNAPSHOT_PAGE.read_text().partition("```hex\n")[2].partition("```")[0]
    assert bytes.fromhex("".join(line[6:] for line in shown.splitlines())) == (GOLDEN / "SNAPSHOT.state").read_bytes()


def test_the_example_of_the_page_matches_the_written_bytes(tmp_path: Path) -> None:
    with SegmentWriter.create(LocalFiles(), tmp_path, 7, SegmentLimits(max_entries=2, max_bytes=1000)) as writer:
        writer.append(5, 3, b"hello")
        writer.seal()
        data = Path(writer.path).read_bytes()
    shown = re.search(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    listed = [line.split("  ", 1)[1] for line in shown[1].strip().splitlines()]
    assert bytes.fromhex("".join(listed)) == data


if __name__ == "__main__":
    import tempfile

    GOLDEN.mkdir(exist_ok=True)
    for golden, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(write(Path(scratch)), GOLDEN / golden)
    sys.exit(0)
