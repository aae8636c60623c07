# SPDX-License-Identifier: Apache-2.0
"""The WAL format is a promise: files of an earlier release are read as they were meant, and still written alike.

`python -m tests.raftlog.wal.test_raftlog_wal_golden` writes the golden files; a change in one of them is a new
format
version, or a mistake.
"""

from __future__ import annotations

import re
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, Unsupported
from compactlib.guard import Guard
from compactlib.raftlog import LogOptions, StoreOptions, open_log
from compactlib.raftlog.wal.frames import (
    FILE_HEADER,
    Frame,
    RecoveredWal,
    cut_frame,
    read_wal,
    run_frame,
    sparse_frame,
    wal_name,
)
from compactlib.raftlog.wal.wal import Wal
from tests.harness.raft_world import store_options
from tests.raftlog.reading import flipped

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "raftlog"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "raftlog-wal.md"


def new_wal(folder: Path) -> Wal:
    options = StoreOptions(log=LogOptions(clock=ManualClock(1.0)))
    wal = Wal(folder, Guard("a WAL"), options, RecoveredWal())
    wal.begin()
    return wal


def write_example(folder: Path) -> Path:
    wal = new_wal(folder)
    wal.queue("a", run_frame(1, 3, [b"x", b"yes"], None))
    wal.sync()
    wal.close()
    return folder / wal_name(wal.number)


def write_all_kinds(folder: Path) -> Path:
    wal = new_wal(folder)
    wal.queue("orders", run_frame(0, 1, [b"zero", b"", b"two" * 5], None))
    wal.queue("köln", sparse_frame([7, 2**63], [1, 2**64 - 1], [b"seven", b""], None))
    wal.sync()
    wal.queue("orders", run_frame(2, 4, [b"two again"], 1, cuts=True))
    wal.queue("köln", cut_frame(7))
    wal.queue("orders", cut_frame(-1))
    wal.queue("orders", run_frame(0, 5, [bytes(range(256))], None))
    wal.sync()
    wal.close()
    return folder / wal_name(wal.number)


WRITERS: dict[str, Callable[[Path], Path]] = {"example.wal": write_example, "kinds.wal": write_all_kinds}


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_bytes_are_written_today(name: str, tmp_path: Path) -> None:
    assert WRITERS[name](tmp_path).read_bytes() == (GOLDEN / name).read_bytes()


def golden_rows(folder: Path) -> dict[str, list[tuple[int | None, bool, list[tuple[int, int, list[bytes]]]]]]:
    return {log_id: [(frame.previous, frame.cuts, list(frame.runs())) for frame in frames]
            for log_id, frames in read_wal(folder).frames.items()}


def test_every_kind_of_frame_is_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "kinds.wal", tmp_path / "0000000000000001.wal")
    assert golden_rows(tmp_path) == {
        "orders": [
            (None, False, [(0, 1, [b"zero", b"", b"two" * 5])]),
            (1, True, [(2, 4, [b"two again"])]),
            (None, True, []),
            (None, False, [(0, 5, [bytes(range(256))])])],
        "köln": [
            (None, False, [(7, 1, [b"seven"]), (2**63, 2**64 - 1, [b""])]),
            (7, True, [])]}
    found = read_wal(tmp_path)
    assert found.unproven == ()


def test_the_example_of_the_page_matches_the_written_bytes(tmp_path: Path) -> None:
    shown = re.search(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    listed = [line.split("  ", 1)[1] for line in shown[1].strip().splitlines()]
    assert bytes.fromhex("".join(listed)) == write_example(tmp_path).read_bytes()


def test_the_header_matches_its_page() -> None:
    body = b"CLRAFWAL" + struct.pack("<HHIQQQ", 1, 0, 0, 7, 4096, 10**9) + bytes(20)
    data = body + struct.pack("<I", zlib.crc32(body))
    assert FILE_HEADER.encode(7, 4096, 10**9) == data
    assert FILE_HEADER.decode_header(data, "x") == (7, 4096, 10**9)
    for place in range(64):
        with pytest.raises(CorruptData):
            FILE_HEADER.decode_header(flipped(data, place, 0x20), "x")


def test_a_later_version_is_unsupported(tmp_path: Path) -> None:
    path = write_example(tmp_path)
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[60:64] = struct.pack("<I", zlib.crc32(data[:60]))
    path.write_bytes(data)
    with pytest.raises(Unsupported, match="WAL format version 2; this release reads 1: upgrade"):
        read_wal(tmp_path)


def test_a_file_under_a_wrong_number_is_damage(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "example.wal", tmp_path / "0000000000000002.wal")
    with pytest.raises(CorruptData, match="expected number 2 as in the file name"):
        read_wal(tmp_path)


@given(st.data())
def test_any_change_is_damage_or_a_prefix_of_the_written_entries(tmp_path_factory: pytest.TempPathFactory,
                                                                 data: st.DataObject) -> None:
    whole = (GOLDEN / "kinds.wal").read_bytes()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        length = data.draw(st.integers(0, 80))
        changed[place:place + length] = data.draw(st.binary(max_size=80))
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "0000000000000001.wal").write_bytes(whole)
    rows = golden_rows(folder)
    (folder / "0000000000000001.wal").write_bytes(changed)
    try:
        found = golden_rows(folder)
    except CompactlibError:
        return
    assert all(frames == rows[log_id][:len(frames)] for log_id, frames in found.items())


def test_a_flipped_byte_inside_the_wal_refuses_the_opening(tmp_path: Path) -> None:
    with open_log(tmp_path / "store", store_options(max_wal_bytes=1 << 20)) as log:
        for index in range(1, 10):
            log.append([(index, 1, b"entry %d" % index * 10)])
            log.sync()
    (path,) = (tmp_path / "store" / "wal").iterdir()
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) // 2, 1))
    with pytest.raises(CorruptData, match="was durable, found a damaged frame"):
        open_log(tmp_path / "store", StoreOptions())
    path.write_bytes(data)
    with open_log(tmp_path / "store", StoreOptions()) as log:
        assert log.last_index == 9


class TooLong(bytes):
    """Says that it has more bytes than a length in the file can say."""

    def __len__(self) -> int:
        return 1 << 32


@pytest.mark.parametrize("make", [lambda payloads: run_frame(1, 1, payloads, None),
                                  lambda payloads: sparse_frame([1], [1], payloads, None)])
def test_a_payload_whose_length_does_not_fit_is_refused(make: Callable[[list[bytes]], Frame]) -> None:
    with pytest.raises(InvalidInput, match="a payload has 4294967296 bytes, at most 4294967295 are taken"):
        make([TooLong(b"x")])


if __name__ == "__main__":
    import tempfile

    for golden, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(write(Path(scratch)), GOLDEN / golden)
    sys.exit(0)
