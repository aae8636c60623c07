# SPDX-License-Identifier: Apache-2.0
"""The memtable: contiguous and sparse inserts, chained on overwrite."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactlib.errors import CompactlibError
from compactlib.raftlog import Entry
from compactlib.raftlog.errors import GapDetected, MemtableFull, Overwriting
from compactlib.raftlog.memtable.table import Memtable, Slab, visible_slabs
from tests.harness.plain_log import PlainLog


def test_sparse_inserts() -> None:
    table = Memtable()
    table.insert_sparse(2, 1, b"two", None)
    table.insert_sparse(5, 1, b"five", 2)
    assert list(table.indexes()) == [2, 5]
    assert (table.tables[0].base, table.last) == (0, 5)
    with pytest.raises(GapDetected, match="follows index 4 was given to a log that ends at 5") as gap:
        table.insert_sparse(9, 1, b"nine", 4)
    assert (gap.value.previous, gap.value.last) == (4, 5)
    with pytest.raises(Overwriting, match="entry 5 is not above the last index 5") as over:
        table.insert_sparse(5, 1, b"five again", 5)
    assert (over.value.index, over.value.last) == (5, 5)
    assert table.find(5) == Entry(5, 1, b"five")
    assert table.find(3) is None
    table.audit()


def test_a_contiguous_insert_is_the_next_one_or_an_overwrite() -> None:
    table = Memtable()
    table.insert_run(7, 1, [b"a", b"b"])
    with pytest.raises(GapDetected):
        table.insert_run(10, 1, [b"d"])
    table.insert_run(9, 1, [b"c"])
    assert len(table.tables) == 1
    table.insert_run(8, 2, [b"B"])
    assert [table.base for table in table.tables] == [0, 8]
    assert [(table.find(index) or Entry(index, 0, b"none")).payload for index in (7, 8, 9)] == [b"a", b"B", b"none"]
    # What readers and the segment writer hold is as it was.
    assert table.tables[0].find(9) == Entry(9, 1, b"c")


def test_a_log_whose_entries_are_in_segments_goes_on_behind_them() -> None:
    table = Memtable(40)
    with pytest.raises(GapDetected):
        table.insert_run(42, 1, [b"x"])
    table.insert_run(41, 1, [b"x"])
    assert table.base == 41
    table.insert_run(30, 2, [b"y"])
    assert (table.base, table.tables[-1].cuts, table.last) == (30, True, 30)


def test_there_is_a_limit() -> None:
    table = Memtable(max_entries=3)
    table.insert_run(1, 1, [b"", b""])
    with pytest.raises(MemtableFull, match="2 entries are in memory, at most 3 may be"):
        table.insert_run(3, 1, [b"", b""])
    with pytest.raises(MemtableFull):
        table.insert_run(1, 2, [b"", b""])
    assert list(table.indexes()) == [1, 2]
    table.insert_sparse(9, 1, b"", None)
    with pytest.raises(MemtableFull):
        table.insert_sparse(10, 1, b"", None)
    table.freeze(1)
    table.release(table.frozen(1))
    assert (table.entries, table.last, table.tables) == (0, 9, ())


def test_tables_leave_with_the_wal_files_they_wait_with() -> None:
    table = Memtable()
    table.insert_run(1, 1, [b"a", b"b"])
    assert table.freeze(1)
    assert not table.freeze(2)
    table.insert_run(3, 1, [b"c"])
    table.freeze(2)
    table.insert_run(2, 2, [b"B"])
    assert [[*visible_slabs(table.frozen(number))] for number in (0, 1, 2)] == [
        [], [Slab(1, 1, [b"a", b"b"])], [Slab(1, 1, [b"a", b"b"]), Slab(3, 1, [b"c"])]]
    table.release(table.frozen(1))
    assert (table.base, table.entries) == (2, 2)
    table.audit()


def test_audit_finds_what_is_out_of_order() -> None:
    table = Memtable()
    table.insert_run(5, 1, [b"x"])
    table.tables[0].base = 9
    with pytest.raises(CompactlibError, match=r"slab 5\.\.5 follows 8"):
        table.audit()
    table.tables[0].base = 0
    table.tables[0].slabs[0].payloads.append(b"behind its back")
    with pytest.raises(CompactlibError, match="hold 2 entries, 1 were counted"):
        table.audit()


@pytest.mark.parametrize("numbers", [(4, 3), (None, 3)])
def test_audit_finds_tables_that_would_go_to_segments_in_the_wrong_order(numbers: tuple[int | None, int]) -> None:
    table = Memtable()
    table.insert_run(1, 1, [b"a"])
    table.freeze(3)
    table.insert_run(2, 1, [b"b"])
    table.freeze(4)
    table.audit()
    for each, number in zip(table.tables, numbers, strict=True):
        each.file_number = number
    with pytest.raises(CompactlibError, match="out of order"):
        table.audit()


def test_readers_need_no_lock() -> None:
    """Whatever a reader finds while another thread appends and overwrites is something that was appended."""
    table = Memtable()
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for index in range(1, 60):
                found = table.find(index)
                if found is not None and found.payload != b"%d %d" % (index, found.term):
                    wrong.append(found)

    thread = threading.Thread(target=read)
    thread.start()
    for term in range(1, 60):
        for index in range(term, 60):
            table.insert_run(index, term, [b"%d %d" % (index, term)])
    done.set()
    thread.join()
    assert not wrong


class MemtableMachine(RuleBasedStateMachine):
    """Inserts, cuts and releases against a dictionary; what was released is held by "segments"."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Memtable()
        self.plain = PlainLog()
        self.segments: dict[int, Entry] = {}
        self.file = 0
        self.term = 1

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        first = self.table.last + 1
        self._put(first, count)

    @rule(back=st.integers(0, 6), count=st.integers(1, 3))
    def overwrite(self, back: int, count: int) -> None:
        self.term += 1
        self._put(max(self.table.last - back, 0), count)

    def _put(self, first: int, count: int) -> None:
        self.table.insert_run(first, self.term, [b"%d" % index for index in range(first, first + count)])
        for index in range(first, first + count):
            self.plain.append(index, self.term, b"%d" % index)

    @rule(gap=st.integers(0, 3))
    def sparse(self, gap: int) -> None:
        last = self.table.last
        self.table.insert_sparse(last + 1 + gap, self.term, b"sparse", last if last >= 0 else None)
        self.plain.append(last + 1 + gap, self.term, b"sparse")

    @rule(back=st.integers(0, 6))
    def cut(self, back: int) -> None:
        after = max(self.table.last - back, -1)
        self.table.cut(after)
        self.term += 1
        self.plain.entries = {index: entry for index, entry in self.plain.entries.items() if index <= after}
        # A log never ends in a gap.
        if self.table.last != max([-1, *self.plain.entries]):
            self.table.cut(max([-1, *self.plain.entries]))

    @rule()
    def freeze(self) -> None:
        self.file += 1
        self.table.freeze(self.file)

    @rule(through=st.integers(0, 3))
    def flush(self, through: int) -> None:
        tables = self.table.frozen(self.file - through)
        for table in tables:
            if table.cuts:
                self.segments = {index: entry for index, entry in self.segments.items() if index < table.base}
            for slab in table.slabs:
                for place, payload in enumerate(slab.payloads):
                    self.segments[slab.first + place] = Entry(slab.first + place, slab.term, payload)
        self.table.release(tables)

    @invariant()
    def answers(self) -> None:
        base = self.table.base
        for index in range(self.table.last + 3):
            found = self.table.find(index) if base is not None and index >= base else self.segments.get(index)
            assert found == self.plain.entries.get(index)
            if found is not None and base is not None and index >= base:
                assert self.table.term_of(index) == found.term
        if base is not None:
            held = [index for index in self.plain.entries if index >= base]
            assert list(self.table.indexes().at_least(base)) == held
        assert self.table.last == max([-1, *self.plain.entries])
        self.table.audit()


TestMemtableMachine = MemtableMachine.TestCase
TestMemtableMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
