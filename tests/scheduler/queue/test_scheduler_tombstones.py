# SPDX-License-Identifier: Apache-2.0
"""Tombstones: cases with known answers, leases and confirmations, and any steps against a plain list."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.scheduler import BlockMeta, Command
from compactlib.scheduler.model.values import BlockTombstones, ShardTombstone, Tombstone
from compactlib.scheduler.queue.tombstones import TombstoneEntry, Tombstones

HOUR = 3600.0


def of_blocks(name: str, *blocks: str, tenant: str = "A", shard: int = 1) -> BlockTombstones:
    return BlockTombstones(name=name, tenant=tenant, shard=shard, level=0, blocks=blocks)


def of_span(name: str, timestamp: float, duration: float, tenant: str = "A", shard: int = 1) -> ShardTombstone:
    return ShardTombstone(name=name, tenant=tenant, shard=shard, timestamp=timestamp, duration=duration)


def block(block_id: str, at: float = 0.0, tenant: str = "A", shard: int = 1) -> BlockMeta:
    return BlockMeta(id=block_id, tenant=tenant, shard=shard, level=0, min_time=at, max_time=at)


def names(tombstones: tuple[Tombstone, ...]) -> list[str]:
    return [tombstone.name for tombstone in tombstones]


def test_what_is_older_than_the_cutoff_comes_in_the_order_of_its_commands() -> None:
    now, found = 100 * HOUR, Tombstones(0)
    for number in range(5):
        found.add(Command(number + 1, 1, now - (5 - number) * HOUR), of_blocks(str(number)))
    assert names(found.due(now, 100)) == ["0", "1", "2", "3", "4"]
    assert names(found.due(now - 3 * HOUR, 100)) == ["0", "1"]
    assert found.due(now - 10 * HOUR, 100) == ()
    assert Tombstones(0).due(now, 100) == ()
    for name in ("4", "3"):
        assert found.confirm(name)
    found.add(Command(6, 1, now), of_blocks("5"))
    found.confirm("5")
    assert names(found.due(now, 100)) == ["0", "1", "2"]


def test_adding_and_confirming_twice_changes_nothing() -> None:
    found = Tombstones()
    assert found.add(Command(1, 1, 0), of_blocks("job", "a", "b"))
    assert not found.add(Command(2, 1, 0), of_blocks("job", "a", "b"))
    assert len(found) == 1
    assert found.exists("A", 1, "a")
    assert found.exists("A", 1, "b")
    assert not found.exists("A", 2, "a")
    assert found.confirm("job")
    assert not found.confirm("job")
    assert not found.exists("A", 1, "a")
    found.audit()


def test_restored_tombstones_protect_their_blocks() -> None:
    found = Tombstones()
    for number in range(3):
        found.add(Command(number, 1, 0), of_blocks(f"job {number}", f"a{number}", f"b{number}"))
    again = Tombstones()
    again.restore(reversed(list(found)))
    assert len(again) == 3
    assert all(again.exists("A", 1, f"{letter}{number}") for number in range(3) for letter in "ab")
    again.audit()


def test_the_delay_is_strict() -> None:
    found = Tombstones(900)
    found.add(Command(1, 1, 100.0), of_blocks("job"))
    assert found.due(1000.0, 1) == ()
    assert names(found.due(1000.5, 1)) == ["job"]


def test_a_leased_tombstone_stays_until_a_worker_confirms_it() -> None:
    found = Tombstones(0)
    for index in (1, 2, 3):
        found.add(Command(index, 1, 0.0), of_blocks(f"job {index}", "a"))
    found.lease("job 1", 50.0)
    assert names(found.due(10.0, 9)) == ["job 2", "job 3"]
    assert found.exists("A", 1, "a")
    assert names(found.due(50.0, 9)) == ["job 2", "job 3"]
    assert names(found.due(50.1, 9)) == ["job 2", "job 3", "job 1"]
    assert names(found.due(50.1, 2)) == ["job 2", "job 3"]
    assert names(found.due(50.1, 9, skip={"job 2"})) == ["job 3", "job 1"]
    found.lease("job 1", 90.0)
    assert names(found.due(60.0, 9)) == ["job 2", "job 3"]
    assert found.confirm("job 1")
    assert "job 1" not in found
    found.lease("job 1", 99.0)
    assert "job 1" not in found
    found.audit()


@pytest.mark.parametrize("limit", [0, -1])
def test_nothing_is_due_where_nothing_is_asked_for(limit: int) -> None:
    found = Tombstones(0)
    found.add(Command(1, 1, 0.0), of_blocks("job"))
    assert found.due(9.0, limit) == ()


def test_several_of_one_command_keep_their_order_through_a_restore() -> None:
    found = Tombstones(0)
    for name in ("z", "b", "m"):
        found.add(Command(7, 1, 0.0), of_blocks(name))
    again = Tombstones(0)
    again.restore(sorted(found, key=lambda entry: entry.tombstone.name))
    assert names(again.due(1.0, 9)) == names(found.due(1.0, 9)) == ["z", "b", "m"]


def test_a_span_covers_what_begins_in_it() -> None:
    found = Tombstones()
    found.add(Command(1, 1, 0.0), of_span("span", 100, 50))
    assert [found.covers(block("x", at)) for at in (99.9, 100, 149.9, 150)] == [False, True, True, False]
    assert not found.covers(block("x", 100, tenant="B"))
    assert not found.covers(block("x", 100, shard=2))
    assert not found.exists("A", 1, "x")
    found.confirm("span")
    assert not found.covers(block("x", 100))
    found.audit()


def test_a_block_named_twice_is_protected_until_both_are_confirmed() -> None:
    found = Tombstones()
    found.add(Command(1, 1, 0.0), of_blocks("one", "a", "a", "b"))
    found.add(Command(2, 1, 0.0), of_blocks("two", "a"))
    found.confirm("one")
    assert found.covers(block("a"))
    assert not found.covers(block("b"))
    found.confirm("two")
    assert not found.covers(block("a"))
    found.audit()


def test_tombstones_of_no_blocks() -> None:
    found = Tombstones()
    for name in ("one", "two"):
        found.add(Command(1, 1, 0.0), of_blocks(name))
    found.audit()
    assert found.confirm("one")
    assert found.confirm("two")
    found.audit()


@pytest.mark.parametrize("wrong", [
    (TombstoneEntry(1, 0, 0.0, of_blocks("x")), TombstoneEntry(2, 0, 0.0, of_blocks("x"))),
    (TombstoneEntry(1, 0, 0.0, of_blocks("x")), TombstoneEntry(1, 0, 0.0, of_blocks("y"))),
])
def test_stored_tombstones_that_contradict_each_other(wrong: tuple[TombstoneEntry, ...]) -> None:
    with pytest.raises(InvalidInput, match="stored twice"):
        Tombstones().restore(wrong)


def test_a_delay_that_is_none() -> None:
    with pytest.raises(InvalidInput):
        Tombstones(-1)


def test_the_audit_notices_what_is_lost() -> None:
    for part in ("_free", "_blocks", "_spans"):
        found = Tombstones()
        found.add(Command(1, 1, 0.0), of_blocks("job", "a"))
        found.add(Command(1, 1, 0.0), of_span("span", 0, 1))
        found.audit()
        getattr(found, part).clear()
        with pytest.raises(CompactlibError):
            found.audit()


class TombstonesMachine(RuleBasedStateMachine):
    """Against a plain list of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Tombstones(10)
        self.plain: list[TombstoneEntry] = []
        self.now = 0.0
        self.index = 0
        self.ever = 0

    @rule(seconds=st.sampled_from([-3.0, 1.0, 7.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now = max(self.now + seconds, 0.0)

    @rule(count=st.integers(1, 3), span=st.booleans())
    def add(self, count: int, span: bool) -> None:
        self.index += 1
        for position in range(count):
            self.ever += 1
            tombstone: Tombstone = (of_span(f"{self.ever}", 10.0 * (self.ever % 5), 10.0) if span else
                                    of_blocks(f"{self.ever}", f"b{self.ever % 7}", f"b{self.ever % 5}"))
            assert self.found.add(Command(self.index, 1, self.now), tombstone)
            self.plain.append(TombstoneEntry(self.index, position, self.now, tombstone))

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        name = str(data.draw(st.integers(1, self.ever + 1)))
        known = [entry for entry in self.plain if entry.tombstone.name == name]
        assert self.found.confirm(name) is bool(known)
        self.plain = [entry for entry in self.plain if entry.tombstone.name != name]

    @rule(limit=st.integers(1, 5), seconds=st.sampled_from([5.0, 20.0]))
    def lease_what_is_due(self, limit: int, seconds: float) -> None:
        waiting = []
        for entry in self.plain:
            if not entry.leased_until:
                if not entry.appended_at < self.now - 10:
                    break
                waiting.append(entry)
        expired = sorted((entry for entry in self.plain if entry.leased_until and entry.leased_until < self.now),
                         key=lambda entry: entry.leased_until)
        expected = [entry.tombstone for entry in waiting + expired][:limit]
        due = self.found.due(self.now, limit)
        assert list(due) == expected
        for tombstone in due:
            self.found.lease(tombstone.name, self.now + seconds)
        leased = set(names(due))
        self.plain = [attrs.evolve(entry, leased_until=self.now + seconds) if entry.tombstone.name in leased else entry
                      for entry in self.plain]

    @rule()
    def restore(self) -> None:
        stored = list(self.found)
        self.found = Tombstones(10)
        self.found.restore(stored)

    @invariant()
    def tells_the_same(self) -> None:
        self.found.audit()
        assert sorted(self.found, key=lambda entry: (entry.index, entry.position)) == self.plain
        for number in range(7):
            mentioned = any(isinstance(entry.tombstone, BlockTombstones) and f"b{number}" in entry.tombstone.blocks
                            for entry in self.plain)
            assert self.found.exists("A", 1, f"b{number}") is mentioned
            at = 10.0 * number + 3
            spanned = any(isinstance(entry.tombstone, ShardTombstone) and entry.tombstone.timestamp == at - 3
                          for entry in self.plain)
            assert self.found.covers(block("other", at)) is spanned


TestTombstonesMachine = TombstonesMachine.TestCase
TestTombstonesMachine.settings = settings(stateful_step_count=25, max_examples=60)


def test_those_that_leave_from_the_middle_leave_no_pile_behind() -> None:
    found = Tombstones(0)
    for number in range(300):
        found.add(Command(number + 1, 1, 0.0), of_blocks(str(number), f"b{number}"))
    left = [str(number) for number in range(300) if number % 5 == 0]
    for number in range(300):
        if number % 5 == 1:
            found.lease(str(number), 9.0)
        elif number % 5:
            assert found.confirm(str(number))
        found.audit()
    assert names(found.due(9.0, 300)) == left
    assert names(found.due(9.1, 300)) == left + [str(number) for number in range(300) if number % 5 == 1]
    assert found.drop_oldest().name == "0"
    assert names(found.due(9.0, 2)) == ["5", "10"]


def test_a_lease_that_is_cut_to_nothing_leaves_the_order_as_it_was() -> None:
    found = Tombstones(0)
    for number in range(3):
        found.add(Command(number + 1, 1, -9.0), of_blocks(str(number)))
    found.lease("0", 5.0)
    assert names(found.due(1.0, 9)) == ["1", "2"]
    found.cut(0.0, 0.0)
    found.audit()
    assert names(found.due(1.0, 9)) == ["0", "1", "2"]
    assert found.drop_oldest().name == "0"
