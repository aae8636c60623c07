# SPDX-License-Identifier: Apache-2.0
"""Reading one segment: every way of asking gives the same answer, and every way checks."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import strategies as st

from compactlib.errors import Closed, CorruptData, StorageError, Unsorted
from compactlib.files import LocalFiles
from compactlib.raftlog import DamagedEntry, Entry, MissingEntry, SegmentLimits
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter
from tests.raftlog.compaction_logs import flip_byte
from tests.raftlog.reading import segment_answers, write_segment

writes = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3), st.binary(max_size=40)), max_size=30)


def test_a_torn_end_hides_nothing_before_it(tmp_path: Path) -> None:
    with SegmentWriter.create(LocalFiles(), tmp_path, 1, SegmentLimits(max_entries=4)) as writer:
        writer.append(1, 1, b"one")
        writer.sync()
        path = Path(writer.path)
    with path.open("ab") as out:
        out.write(b"half of")
    with SegmentReader(path) as reader:
        assert segment_answers(reader, [1, 2]) == {1: Entry(1, 1, b"one"), 2: MissingEntry(2)}


@pytest.mark.parametrize("kind", ["sealed", "open"])
def test_a_flipped_byte_is_found_by_every_way_of_reading(tmp_path: Path, kind: str) -> None:
    rows = [(index, 1, b"payload of %d" % index) for index in range(1, 6)]
    path = write_segment(tmp_path, 1, rows, sealed=kind == "sealed")
    with SegmentReader(path) as reader:
        offset = reader.index.columns.offsets[2]
    flip_byte(path, offset + 4)
    with SegmentReader(path) as reader:
        expected = {row[0]: Entry(*row) for row in rows}
        assert segment_answers(reader, range(1, 6)) == {**expected, 3: "damaged"}
        # Beside its neighbours, alone, in a plan, and in a scan: all of that is in `segment_answers`.
        with pytest.raises(CorruptData) as raised:
            reader.read(3)
        assert (raised.value.path, raised.value.offset, raised.value.index) == (str(path), offset, 3)
        assert [type(answer) for answer in reader.scan(2, 4)] == [Entry, DamagedEntry, Entry]
        assert [error.index for error in reader.damaged_entries()] == [3]


def test_physical_neighbours_are_read_together_whatever_their_indexes(tmp_path: Path) -> None:
    """Every seventh index, as a compaction leaves them: one span, where Ra reads each on its own."""
    path = write_segment(tmp_path, 1, [(7 * number, 1, bytes(100)) for number in range(16)])
    with SegmentReader(path) as reader:
        spans = list(reader.spans(range(16)))
        assert [list(span.positions) for span in spans] == [list(range(16))]
        assert [bytes(payload) for payload in spans[0].payloads] == [bytes(100)] * 16


def test_payloads_larger_than_a_span(tmp_path: Path) -> None:
    rows = [(1, 1, b"small"), (2, 1, b"L" * 3_000_000), (3, 1, b""), (4, 1, b"M" * 2_000_000), (5, 1, b"end")]
    with SegmentReader(write_segment(tmp_path, 1, rows)) as reader:
        assert list(reader.scan()) == [Entry(*row) for row in rows]
        assert segment_answers(reader, [2, 4]) == {2: Entry(*rows[1]), 4: Entry(*rows[3])}


def test_a_file_cut_after_it_was_opened_is_damage(tmp_path: Path) -> None:
    rows = [(1, 1, b"first"), (2, 1, bytes(50)), (3, 1, b"third")]
    path = write_segment(tmp_path, 1, rows)
    with SegmentReader(path) as reader:
        os.truncate(path, os.path.getsize(path) - 6)
        assert segment_answers(reader, [1, 2, 3])[3] == "damaged"
        os.truncate(path, 104)
        assert segment_answers(reader, [1, 2, 3])[1] == "damaged"


def test_indexes_must_ascend(tmp_path: Path) -> None:
    with SegmentReader(write_segment(tmp_path, 1, [(1, 1, b"")])) as reader:
        for indexes in ([2, 1], [1, 1]):
            with pytest.raises(Unsorted, match="follows"):
                list(reader.read_many(indexes))
        assert list(reader.read_many([])) == []


def test_scans_of_a_part(tmp_path: Path) -> None:
    rows = [(index, 1, b"%d" % index) for index in (2, 4, 6, 8)]
    with SegmentReader(write_segment(tmp_path, 1, rows)) as reader:
        def scanned(first: int, last: int) -> list[int]:
            return [entry.index for entry in reader.scan(first, last)]

        assert [scanned(4, 6), scanned(3, 7), scanned(0, 2), scanned(9, 99)] == [[4, 6], [4, 6], [2], []]
        assert scanned(6, 4) == []


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    reader = SegmentReader(write_segment(tmp_path, 1, [(1, 1, b"x")]))
    assert "1 entries" in repr(reader)
    reader.close()
    reader.close()
    for ask in (lambda: reader.read(1), lambda: list(reader.scan()), lambda: list(reader.read_many([1])),
                reader.damaged_entries, reader.fileno):
        with pytest.raises(Closed, match=r"the reader of .* is closed; open the segment again"):
            ask()


def test_what_the_system_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file") as raised:
        SegmentReader(tmp_path / "0000000000000001.segment")
    assert raised.value.errno == errno.ENOENT
    (tmp_path / "0000000000000002.segment").mkdir()
    with pytest.raises(StorageError, match="Is a directory") as raised:
        SegmentReader(tmp_path / "0000000000000002.segment")
    assert pickle.loads(pickle.dumps(raised.value)).errno == errno.EISDIR


def test_files_are_closed_with_the_last_reference(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 1, [(1, 1, b"x")])
    held = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{name}")}
    reader = SegmentReader(path)
    descriptor = reader.fileno()
    answers = reader.scan()
    assert next(answers) == Entry(1, 1, b"x")
    del reader
    # Whoever still reads through it keeps it open.
    assert os.fstat(descriptor).st_size
    del answers
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert str(path) not in held


def test_an_entry_is_a_value_and_a_tuple(tmp_path: Path) -> None:
    with SegmentWriter.create(LocalFiles(), tmp_path, 1) as writer:
        writer.append(7, 3, b"hello")
        writer.flush()
        with SegmentReader(writer.path) as reader:
            entry = reader.read(7)
            [scanned] = reader.scan()
    assert isinstance(entry, Entry)
    assert entry == scanned == Entry(7, 3, b"hello") == (7, 3, b"hello")
    assert {entry} == {scanned} == set(pickle.loads(pickle.dumps([entry])))
    assert (entry.index, entry.term, entry.payload) == tuple(entry)
    assert repr(entry) == "Entry(index=7, term=3, payload=b'hello')"
    with pytest.raises(AttributeError):
        entry.term = 4  # type: ignore[misc]
