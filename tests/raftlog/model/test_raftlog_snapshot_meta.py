# SPDX-License-Identifier: Apache-2.0
"""The `SNAPSHOT` file: every byte checked, replaced as a whole (`docs/formats/raftlog-snapshot.md`)."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import CorruptData, InvalidInput, StorageError, Unsupported
from compactlib.files import LocalFiles
from compactlib.indexset import IndexSet
from compactlib.raftlog import SnapshotMeta
from compactlib.raftlog.errors import LiveAboveSnapshot
from compactlib.raftlog.model.snapshot_meta import (
    NO_SNAPSHOT,
    decode_snapshot_meta,
    encode_snapshot_meta,
    read_snapshot_meta,
    snapshot_version,
    write_snapshot_meta,
)
from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.harness.failing_files import FailingFiles
from tests.harness.index_strategies import indexes, live_sets
from tests.raftlog.reading import flipped

STATE = SnapshotMeta(48, live=IndexSet.from_sorted([1, 2, 20, 40]))
FILES = LocalFiles()


@given(indexes(), live_sets(), st.integers(0, MAX_INDEX))
def test_a_state_reads_back(index: int, live: IndexSet, term: int) -> None:
    state = SnapshotMeta(index, term, live.at_most(index))
    assert decode_snapshot_meta(encode_snapshot_meta(state), "x") == state


def head_of(version: int, zeros_a: int, zeros_b: int, index: int) -> bytes:
    return b"CLRAFSNP" + struct.pack("<HHIQ", version, zeros_a, zeros_b, index)


def with_crc(head: bytes, live: IndexSet, term: int = 0) -> bytes:
    crc, packed = zlib.crc32(head), struct.pack("<Q", term)
    return (head + struct.pack("<I", crc) + packed + struct.pack("<I", zlib.crc32(packed, crc)) + live.to_bytes())


@pytest.mark.parametrize("term", [0, 7])
def test_the_file_is_as_its_page_says(term: int) -> None:
    assert encode_snapshot_meta(SnapshotMeta(48, term, STATE.live)) == with_crc(
        head_of(3, 0, 0, 48), STATE.live, term)


def test_a_term_is_a_number_from_0() -> None:
    with pytest.raises(InvalidInput, match="snapshot term -1"):
        SnapshotMeta(48, -1, STATE.live)


@pytest.mark.parametrize("term", [0, 7])
def test_every_flipped_byte_and_every_cut_is_found(term: int) -> None:
    data = encode_snapshot_meta(SnapshotMeta(48, term, STATE.live))
    for place in range(len(data)):
        for mask in (0x01, 0x10, 0x80, 0xFF):
            with pytest.raises(CorruptData) as raised:
                decode_snapshot_meta(flipped(data, place, mask), "somewhere")
            assert raised.value.path == "somewhere"
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decode_snapshot_meta(data[:size], "x")
    with pytest.raises(CorruptData):
        decode_snapshot_meta(data + b"\0", "x")


def test_another_version_is_unsupported_and_impossible_fields_are_damage() -> None:
    for version, advice in ((1, "use the release that wrote it"), (2, "use the release that wrote it"), (4, "upgrade")):
        with pytest.raises(Unsupported, match=f"x: snapshot state version {version}; this release reads 3: {advice}"):
            decode_snapshot_meta(with_crc(head_of(version, 0, 0, 48), STATE.live), "x")
    for fields in ((0, 0, 0, 48), (3, 1, 0, 48), (3, 0, 1, 48)):
        with pytest.raises(CorruptData, match="expected version 3 and zeros"):
            decode_snapshot_meta(with_crc(head_of(*fields), STATE.live), "x")
    with pytest.raises(CorruptData, match="expected live indexes up to 39, found 40"):
        decode_snapshot_meta(with_crc(head_of(3, 0, 0, 39), STATE.live), "x")
    with pytest.raises(CorruptData, match="expected magic b'CLRAFSNP'"):
        decode_snapshot_meta(b"somebody else's file, long enough", "x")


def test_live_indexes_lie_at_or_below_the_snapshot() -> None:
    with pytest.raises(LiveAboveSnapshot, match="live index 49 lies above the snapshot index 48") as raised:
        SnapshotMeta(48, live=IndexSet.from_sorted([1, 49]))
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (copied.index, copied.snapshot_index) == (49, 48)
    for index in (-2, MAX_INDEX + 1):
        with pytest.raises(InvalidInput, match="it must be between 0 and 18446744073709551615"):
            SnapshotMeta(index)


def test_without_a_snapshot_nothing_is_dead_or_live() -> None:
    assert SnapshotMeta() == NO_SNAPSHOT
    assert (NO_SNAPSHOT.index, NO_SNAPSHOT.smallest_live_index, NO_SNAPSHOT.is_dead(0)) == (-1, 0, False)
    assert NO_SNAPSHOT.needed(IndexSet.range(0, 9)) == IndexSet.range(0, 9)
    with pytest.raises(LiveAboveSnapshot):
        SnapshotMeta(-1, live=IndexSet.range(0, 0))


def test_dead_is_what_lies_at_or_below_and_is_not_live() -> None:
    assert [index for index in range(51) if not STATE.is_dead(index)] == [1, 2, 20, 40, 49, 50]


def test_a_missing_file_is_no_snapshot(tmp_path: Path) -> None:
    assert read_snapshot_meta(tmp_path) is None
    assert snapshot_version(tmp_path) is None


def test_each_file_has_a_version_of_its_own(tmp_path: Path) -> None:
    seen = [snapshot_version(tmp_path)]
    for index in (48, 48, 49):
        write_snapshot_meta(FILES, tmp_path, SnapshotMeta(index, live=STATE.live))
        seen.append(snapshot_version(tmp_path))
    assert len(set(seen)) == 4
    assert snapshot_version(tmp_path) == seen[-1]


def test_a_crash_leaves_the_state_before_or_the_new_one(tmp_path: Path) -> None:
    states = [None, SnapshotMeta(5, live=IndexSet()), STATE, SnapshotMeta(100, live=IndexSet.range(7, 90))]

    def run(folder: Path, files: RecordingFiles) -> None:
        for number, state in enumerate(states):
            if state is not None:
                write_snapshot_meta(files, folder, state)
            files.acknowledge(number)

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        found = read_snapshot_meta(folder)
        assert found in states[max(acknowledged, default=0):]
        # A temporary name that was left over is in nobody's way.
        write_snapshot_meta(FILES, folder, STATE)
        assert read_snapshot_meta(folder) == STATE
        assert os.listdir(folder) == ["SNAPSHOT"]

    explore_crashes(record(tmp_path, run), check)


def test_a_disk_that_refuses_leaves_the_state_before(tmp_path: Path) -> None:
    counting = FailingFiles()
    write_snapshot_meta(counting, tmp_path, STATE)
    for number in range(1, counting.count + 1):
        write_snapshot_meta(FILES, tmp_path, STATE)
        new = SnapshotMeta(100, live=IndexSet())
        with pytest.raises(StorageError) as raised:
            write_snapshot_meta(FailingFiles(fail_at=number), tmp_path, new)
        # Only the last step, the sync of the folder, finds the new one in place already.
        expected = new if raised.value.operation == "sync folder" else STATE
        assert read_snapshot_meta(tmp_path) == expected
        assert os.listdir(tmp_path) == ["SNAPSHOT"]
