# SPDX-License-Identifier: Apache-2.0
"""A caller may read payloads or a state into one buffer, and pass it repeatedly with other bytes each time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactlib.raftlog import Entry, RaftLog, SegmentLog, StoreOptions, open_log
from tests.harness.raft_world import in_one_buffer

ROWS = [(index, 1, b"payload %d" % index) for index in range(1, 6)]
PIECES = [b"piece %d" % number for number in range(9)]


def pieces() -> Iterator[memoryview]:
    """The pieces of a state, as `readinto` gives them."""
    buffer = bytearray(100)
    for piece in PIECES:
        buffer[:len(piece)] = piece
        yield memoryview(buffer)[:len(piece)]


WAYS: dict[str, Callable[[RaftLog], object]] = {
    "append": lambda log: log.append(in_one_buffer(ROWS)),
    "append_entries": lambda log: log.append_entries(0, 0, in_one_buffer(ROWS)),
    "append_run": lambda log: log.append_run(1, 1, (row[2] for row in in_one_buffer(ROWS))),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("way", WAYS)
def test_a_log_takes_entries_of_one_buffer_as_they_were_given(way: str, tmp_path: Path) -> None:
    with open_log(tmp_path, StoreOptions(background=False)) as log:
        WAYS[way](log)
        log.sync()
        assert list(log.entries()) == ROWS
    with open_log(tmp_path, StoreOptions(background=False)) as log:
        assert list(log.entries()) == ROWS


def test_segments_take_entries_of_one_buffer_as_they_were_given(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append(in_one_buffer(ROWS))
        buffer = bytearray(b"payload 6")
        log.append([(6, 1, buffer)])
        buffer[:] = b"the next one"
        log.sync()
        assert list(log.entries()) == [*ROWS, Entry(6, 1, b"payload 6")]
        assert log.verify().is_sound


def test_a_snapshot_of_a_state_in_one_buffer_is_whole(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", StoreOptions(background=False)) as log:
        log.append(ROWS)
        log.snapshot(3, [], pieces())
        log.checkpoint(4, [], pieces())
        for row in (None, *log.checkpoints):
            with log.open_state(row) as state:
                assert b"".join(state.pieces()) == b"".join(PIECES)
        with pytest.raises(TypeError):
            log.snapshot(5, [], ["text"])  # type: ignore[list-item]
        assert log.verify().is_sound


def test_a_state_in_one_piece_is_not_copied(tmp_path: Path) -> None:
    state = bytes(32 << 20)
    with open_log(tmp_path / "log", StoreOptions(background=False)) as log:
        log.append(ROWS)
        tracemalloc.start()
        try:
            log.snapshot(3, [], [b"small", state, b"small"])
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        with log.open_state() as reader:
            assert b"".join(reader.pieces()) == b"".join([b"small", state, b"small"])
