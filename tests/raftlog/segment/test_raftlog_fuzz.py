# SPDX-License-Identifier: Apache-2.0
"""Any byte changed, any cut: a named error or the right answer; no other exception, wrong data or wrong Missing.

Entries covered by a seal are durable: they may be damaged, never missing. After the seal of the newest segment a crash
is indistinguishable from damage: entries may be missing, the last ones first.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import CorruptData, Unsupported
from compactlib.files import LocalFiles
from compactlib.raftlog import LogReader, SegmentLimits, SegmentLog
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter
from tests.harness.plain_log import History, PlainLog, Told, log_answers
from tests.raftlog.reading import flipped, segment_answers, write_segment

SEALED = [(1, 1, b"one"), (2, 1, b""), (5, 1, b"five"), (6, 2, b"five again"), (9, 2, b"\0\0\0")]
SYNCED = [(10, 2, b"ten"), (11, 2, b"")]
BEHIND = [(12, 2, b"twelve"), (13, 3, b"eleven again"), (14, 3, b"")]
INDEXES = range(16)


def changed(data: bytes, masks: Sequence[int]) -> Iterator[bytes]:
    """Every byte with some of its bits flipped, and every cut."""
    for place in range(len(data)):
        for mask in masks:
            yield flipped(data, place, mask)
    for size in range(len(data)):
        yield data[:size]


def write_newest(folder: Path, number: int, *, behind: bool = True) -> Path:
    """Two entries named by the seal, and three that were only written."""
    writer = SegmentWriter.create(LocalFiles(), folder, number, SegmentLimits(max_entries=6))
    for row in SYNCED:
        writer.append(*row)
    writer.sync()
    for row in BEHIND if behind else []:
        writer.append(*row)
    writer.flush()
    writer.abandon()
    return folder / segment_name(number)


def history_of(rows: Sequence[tuple[int, int, bytes]], model: PlainLog | None = None) -> History:
    history = History([PlainLog() if model is None else model])
    for row in rows:
        history.append(*row)
    return history


def is_right(answers: dict[int, Told], states: Sequence[PlainLog]) -> bool:
    """Whether the answers are those of one of the states, but for entries that are damaged."""
    return any(all(answer in ("damaged", state.answer(index)) for index, answer in answers.items()) for state in states)


@pytest.mark.parametrize("sealed", [True, False])
def test_every_change_of_a_sealed_segment(tmp_path: Path, sealed: bool) -> None:
    path = write_segment(tmp_path, 1, SEALED, max_entries=6)
    model, opened = PlainLog.of(SEALED), 0
    for data in changed(path.read_bytes(), (0x01, 0x20, 0x80, 0xFF)):
        path.write_bytes(data)
        with contextlib.suppress(CorruptData, Unsupported), SegmentReader(path, sealed=sealed, number=1) as reader:
            answers = segment_answers(reader, INDEXES)
            # Also if a damaged seal makes it similar to an open segment, no durable entry is missing.
            assert is_right(answers, [model])
            opened += 1
    # In the payloads; in the seal, where that is allowed; and in the part of the index region that was never used.
    assert opened > 80


def test_every_change_of_a_newest_segment(tmp_path: Path) -> None:
    path = write_newest(tmp_path, 1)
    states = history_of([*SYNCED, *BEHIND]).states
    whole = path.read_bytes()
    seen: set[int] = set()
    for data in changed(whole, (0x01, 0x20, 0x80, 0xFF)):
        path.write_bytes(data)
        with contextlib.suppress(CorruptData, Unsupported), SegmentReader(path, number=1) as reader:
            answers = segment_answers(reader, INDEXES)
            assert is_right(answers, states[len(SYNCED):]), answers
            seen.add(len(reader.index))
    assert seen == {2, 3, 4, 5}


def write_log(folder: Path) -> History:
    """Two sealed segments, a newest one with a tail, a snapshot that left two entries of the first."""
    write_segment(folder, 1, SEALED, max_entries=5)
    write_newest(folder, 2, behind=False)
    with SegmentLog(folder) as log:
        log.snapshot(9, [2, 9])
    (folder / segment_name(2)).unlink()
    write_newest(folder, 2)
    model = PlainLog.of(SEALED)
    model.record_snapshot(9, [2, 9])
    return history_of([*SYNCED, *BEHIND], model)


@pytest.mark.parametrize("name", [segment_name(1), segment_name(2), "SNAPSHOT"])
def test_every_change_of_a_file_of_a_log(tmp_path: Path, name: str) -> None:
    states = write_log(tmp_path).states[len(SYNCED):]
    whole = (tmp_path / name).read_bytes()
    opened = 0
    for data in changed(whole, (0x01, 0xFF)):
        (tmp_path / name).write_bytes(data)
        with contextlib.suppress(CorruptData, Unsupported), LogReader(tmp_path) as reader:
            if name == segment_name(2) and not data:
                # A newest file of no bytes is one that was never begun.
                assert log_answers(reader, range(10)) == {index: states[0].answer(index) for index in range(10)}
                continue
            answers = log_answers(reader, INDEXES)
            assert is_right(answers, states), answers
            opened += 1
    assert (opened == 0) == (name == "SNAPSHOT")


@pytest.mark.parametrize("name", [segment_name(1), segment_name(2), "SNAPSHOT"])
def test_a_writer_at_damage_changes_nothing_or_continues(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    states = write_log(folder).states[len(SYNCED):]
    whole = (folder / name).read_bytes()
    for number, data in enumerate([*(flipped(whole, place, 0x04) for place in range(len(whole))),
                                   *(whole[:size] for size in range(1, len(whole), 7))]):
        copied = tmp_path / str(number)
        shutil.copytree(folder, copied)
        (copied / name).write_bytes(data)
        before = {path.name: path.read_bytes() for path in copied.iterdir() if path.name != "LOCK"}
        try:
            log = SegmentLog(copied)
        except (CorruptData, Unsupported):
            assert {path.name: path.read_bytes() for path in copied.iterdir() if path.name != "LOCK"} == before
        else:
            with log:
                assert is_right(log_answers(log, INDEXES), states)
                last = log.last_index
                assert last is not None
                log.append([(last + 1, 9, b"goes on")])
            with LogReader(copied) as reader:
                assert reader.read(last + 1).payload == b"goes on"  # type: ignore[union-attr]
        shutil.rmtree(copied)


@given(st.data())
def test_many_changes_at_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A sealed segment that must be sealed: after any damage no wrong entry is read."""
    folder = tmp_path_factory.getbasetemp() / "many-changes"
    if not folder.exists():
        folder.mkdir()
        write_segment(folder, 1, SEALED, max_entries=6)
    whole = (folder / segment_name(1)).read_bytes()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=12))
        content[start:start + len(piece)] = piece
    path = folder / "changed.segment"
    path.write_bytes(content)
    with contextlib.suppress(CorruptData, Unsupported), SegmentReader(path, sealed=True) as reader:
        assert is_right(segment_answers(reader, INDEXES), [PlainLog.of(SEALED)])


@given(st.binary(max_size=400))
def test_anything_at_all(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "anything.segment"
    path.write_bytes(content)
    with pytest.raises((CorruptData, Unsupported)):
        SegmentReader(path)
