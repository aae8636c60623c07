# SPDX-License-Identifier: Apache-2.0
"""The metadata index: what it refuses, replaces and removes, and any steps against a plain dictionary."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.scheduler import BlockMeta, Command
from compactlib.scheduler.model.values import BlockTombstones, ShardTombstone
from compactlib.scheduler.queue.metadata_index import AddOutcome, MetadataIndex, Replaced, SourcesMissing
from compactlib.scheduler.queue.tombstones import Tombstones


def block(block_id: str, start: float = 0.0, end: float | None = None, tenant: str = "A", shard: int = 1,
          level: int = 0) -> BlockMeta:
    return BlockMeta(id=block_id, tenant=tenant, shard=shard, level=level, min_time=start,
                     max_time=start if end is None else end, size_bytes=10)


def index_of(*blocks: BlockMeta, partition_seconds: int = 100) -> MetadataIndex:
    index = MetadataIndex(partition_seconds)
    for each in blocks:
        assert index.add(each) is AddOutcome.ADDED
    return index


def ids(index: MetadataIndex, tenant: str | None = None, shard: int | None = None, start: float = -math.inf,
        end: float = math.inf) -> str:
    return "".join(each.id for each in index.blocks(tenant=tenant, shard=shard, start=start, end=end))


def test_adding_twice_changes_nothing() -> None:
    index = index_of(block("a", 5))
    assert index.add(block("a", 5)) is AddOutcome.DUPLICATE
    assert index.add(block("a", 7)) is AddOutcome.DUPLICATE
    assert index.get("A", 1, "a") == block("a", 5)
    assert len(index) == 1
    assert index.add(block("a", 5, shard=2)) is AddOutcome.ADDED
    assert index.get("A", 3, "a") is None
    assert index.get("A", 1, "b") is None


def test_a_block_that_waits_for_deletion_is_refused() -> None:
    tombstones, index = Tombstones(), index_of(block("c"))
    tombstones.add(Command(1, 1, 0.0), BlockTombstones(name="job", tenant="A", shard=1, level=0, blocks=("a",)))
    tombstones.add(Command(2, 1, 0.0), ShardTombstone(name="span", tenant="A", shard=1, timestamp=100, duration=100))
    assert index.add(block("a"), tombstones) is AddOutcome.TOMBSTONED
    assert index.add(block("b", 150, 400), tombstones) is AddOutcome.TOMBSTONED
    assert index.add(block("b", 50, 150), tombstones) is AddOutcome.ADDED
    assert ids(index) == "cb"
    tombstones.confirm("job")
    assert index.add(block("a"), tombstones) is AddOutcome.ADDED


def test_a_replacement_is_all_or_nothing() -> None:
    index = index_of(block("a"), block("b", 1), block("c", 2))
    assert index.replace("A", 1, ["a", "x", "b", "y"], [block("n", level=1)]) == SourcesMissing(("x", "y"))
    assert ids(index) == "abc"
    with pytest.raises(InvalidInput, match="shard 2"):
        index.replace("A", 1, ["a"], [block("n"), block("m", shard=2)])
    assert ids(index) == "abc"
    assert index.replace("A", 1, ["a", "b", "a"], [block("n", 0, 1, level=1)]) == Replaced(
        (block("a"), block("b", 1)), (block("n", 0, 1, level=1),))
    assert ids(index) == "nc"
    index.audit()


def test_a_replacement_may_split_by_tenant_and_keep_an_id() -> None:
    index = index_of(block("a", tenant=""), block("b", tenant=""))
    outcome = index.replace("", 1, ["a", "b"], [block("a", tenant=""), block("n", tenant="A"), block("n", tenant="B")])
    assert isinstance(outcome, Replaced)
    assert len(outcome.added) == 3
    assert [(each.tenant, each.id) for each in index.blocks()] == [("", "a"), ("A", "n"), ("B", "n")]
    index.audit()


def test_a_replacement_that_was_made_before_adds_nothing_twice() -> None:
    index = index_of(block("a"), block("n"))
    assert index.replace("A", 1, ["a"], [block("n", 5)]) == Replaced((block("a"),), ())
    assert index.get("A", 1, "n") == block("n")


def test_lists_by_tenant_shard_and_time() -> None:
    index = index_of(block("a", 10, 20), block("b", 150, 160), block("c", 30, 350, tenant="B"),
                     block("d", 220, 230, shard=2), block("e", 220, 230, tenant="B", shard=2))
    assert ids(index) == "acbde"
    assert ids(index, tenant="A") == "abd"
    assert ids(index, tenant="B", shard=2) == "e"
    assert ids(index, shard=1) == "acb"
    assert ids(index, tenant="C") == ids(index, shard=9) == ids(index, tenant="C", shard=1) == ""
    assert ids(index, start=200, end=219) == "c"
    assert ids(index, start=160, end=220) == "cbde"
    assert ids(index, start=20, end=20) == "a"
    assert ids(index, end=9) == ids(index, start=351) == ids(index, start=30, end=10) == ""


@pytest.mark.parametrize("changes", [1, 10, 16, 17, 100])
def test_a_list_is_in_order_however_much_has_changed_since_the_last_one(changes: int) -> None:
    known = {f"b{number:03}": block(f"b{number:03}", number * 7 % 50) for number in range(100)}
    index = index_of(*known.values())
    for turn in (1.0, 3.0):
        for number in range(changes):
            # What goes and comes back lies elsewhere, or in the same place with another level.
            name = f"b{number:03}"
            known[name] = block(name, begin(known[name]) if number % 2 else number * turn % 40, level=int(turn))
            assert len(index.remove("A", 1, [name])) == 1
            assert index.add(known[name]) is AddOutcome.ADDED
        expected = sorted(known.values(), key=lambda each: (begin(each), each.id))
        assert list(index.blocks()) == expected
        assert list(index.blocks(start=9, end=30)) == [each for each in expected if 9 <= begin(each) <= 30]
        index.audit()


def test_what_is_missing_in_the_order_given() -> None:
    index = index_of(block("a"))
    assert index.missing("A", 1, ["y", "a", "x"]) == ("y", "x")
    assert index.missing("B", 1, ["a"]) == ("a",)


def test_retention_removes_whole_partitions() -> None:
    index = index_of(block("a", 10), block("b", 90), block("c", 110), block("d", 20, tenant="B"),
                     block("e", 30, 130, tenant="C"))
    assert index.expired(99.9) == ()
    first, second = index.expired(100, name_suffix="@7")
    assert first == ShardTombstone(name="0 (100s)-TA-S1@7", tenant="A", shard=1, timestamp=0, duration=100)
    assert second.tenant == "B"
    assert index.expired(100, 1) == (attrs.evolve(first, name="0 (100s)-TA-S1"),)
    assert len(index.expired(130)) == 2
    assert len(index.expired(130.1)) == 3
    assert ids(index) == "adebc"
    assert index.drop(first) == (block("a", 10), block("b", 90))
    assert index.drop(first) == ()
    assert ids(index) == "dec"
    assert [each.timestamp for each in index.expired(1000)] == [100, 0, 0]
    index.audit()


def test_what_is_as_old_as_what_retention_has_removed_is_refused_for_good() -> None:
    # A deletion of a span meets whatever lies there, also the object of a block that has not arrived yet.
    index, tombstones = index_of(block("a", 10)), Tombstones()
    (span,) = index.expired(100)
    index.drop(span)
    for late in (block("b", 10), block("b", -500), block("b", 99.9, 300)):
        assert index.add(late, tombstones) is AddOutcome.TOMBSTONED
    assert index.add(block("c", 100), tombstones) is AddOutcome.ADDED
    assert index.add(block("d", 10, shard=2), tombstones) is AddOutcome.ADDED
    assert index.add(block("out", 10)) is AddOutcome.ADDED
    again = MetadataIndex(index.partition_seconds)
    again.restore_dropped_until(index.dropped_until())
    assert again.add(block("b", 10), tombstones) is AddOutcome.TOMBSTONED


def test_blocks_of_several_tenants_are_refused_where_any_tenant_of_the_shard_has_lost_that_time() -> None:
    # A job would turn them into blocks of that tenant, in a span that a late worker may still be deleting.
    index, tombstones = index_of(block("a", 10)), Tombstones()
    (span,) = index.expired(100)
    index.drop(span)
    again = MetadataIndex(index.partition_seconds)
    again.restore_dropped_until(index.dropped_until())
    for each in (index, again):
        assert each.add(block("b", 99, tenant=""), tombstones) is AddOutcome.TOMBSTONED
        assert each.add(block("b", 99, tenant="B"), tombstones) is AddOutcome.ADDED
        assert each.add(block("b", 99, shard=2, tenant=""), tombstones) is AddOutcome.ADDED
        assert each.add(block("c", 100, tenant=""), tombstones) is AddOutcome.ADDED


def test_a_span_stays_until_no_block_of_several_tenants_can_be_turned_into_one_of_it() -> None:
    index = index_of(block("a", 10), block("b", 250), block("c", 60, 500, tenant=""), block("d", 10, shard=2))
    assert [(span.shard, span.timestamp) for span in index.expired(400)] == [(2, 0)]
    index.replace("", 1, ["c"], [block("out", 60, 500)])
    # What came of it keeps its own span alive; the other one may go.
    assert [(span.shard, span.timestamp) for span in index.expired(400)] == [(1, 200), (2, 0)]
    index.audit()


@given(st.floats(-1e12, 1e12), st.integers(1, 100_000))
def test_a_block_lies_in_the_span_that_removes_it(time: float, partition_seconds: int) -> None:
    index = index_of(block("a", time), partition_seconds=partition_seconds)
    (span,) = index.expired(math.inf)
    assert span.timestamp <= time < span.timestamp + span.duration
    assert index.drop(span) == (block("a", time),)
    assert len(index) == 0


def test_times_and_spans_that_are_none() -> None:
    with pytest.raises(InvalidInput):
        MetadataIndex(0)
    index = index_of(block("a"))
    with pytest.raises(InvalidInput):
        index.add(block("b", 0, math.inf))
    with pytest.raises(InvalidInput):
        index.replace("A", 1, ["a"], [block("b", -math.inf, 0)])
    assert ids(index) == "a"
    index.audit()


def test_the_audit_notices_what_is_lost() -> None:
    index = index_of(block("a"), block("b"))
    (group,) = index._groups.values()  # noqa: SLF001
    group.by_id.pop("a")
    with pytest.raises(CompactlibError, match="does not belong"):
        index.audit()
    index = index_of(block("a"), block("b"))
    assert ids(index) == "ab"
    (group,) = index._groups.values()  # noqa: SLF001
    group.partitions[0]._in_order.reverse()  # noqa: SLF001
    with pytest.raises(CompactlibError, match="another order"):
        index.audit()
    index = index_of(block("a"), block("b"))
    index._size = 3  # noqa: SLF001
    with pytest.raises(CompactlibError, match="counts 3"):
        index.audit()


TENANTS, SHARDS = st.sampled_from("AB"), st.integers(0, 2)
TIMES = st.integers(-50, 400).map(float)


def begin(block: BlockMeta) -> float:
    """Blocks without times come last."""
    return math.inf if block.min_time is None else block.min_time


def end(block: BlockMeta) -> float:
    return math.inf if block.max_time is None else block.max_time


class IndexMachine(RuleBasedStateMachine):
    """Against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.index = MetadataIndex(60)
        self.plain: dict[tuple[str, int, str], BlockMeta] = {}

    @rule(name=st.integers(0, 15), tenant=TENANTS, shard=SHARDS, start=TIMES, length=st.sampled_from([0, 5, 70, 300]))
    def add(self, name: int, tenant: str, shard: int, start: float, length: float) -> None:
        added = block(f"b{name}", start, start + length, tenant, shard)
        known = (tenant, shard, added.id) in self.plain
        assert self.index.add(added) is (AddOutcome.DUPLICATE if known else AddOutcome.ADDED)
        self.plain.setdefault((tenant, shard, added.id), added)

    @rule(name=st.integers(0, 15), tenant=TENANTS, shard=SHARDS)
    def add_without_times(self, name: int, tenant: str, shard: int) -> None:
        added = BlockMeta(id=f"b{name}", tenant=tenant, shard=shard, level=0)
        known = (tenant, shard, added.id) in self.plain
        assert self.index.add(added) is (AddOutcome.DUPLICATE if known else AddOutcome.ADDED)
        self.plain.setdefault((tenant, shard, added.id), added)

    @rule(tenant=TENANTS, shard=SHARDS, names=st.lists(st.integers(0, 15), max_size=3), start=TIMES)
    def replace(self, tenant: str, shard: int, names: list[int], start: float) -> None:
        sources = [f"b{name}" for name in names]
        missing = tuple(name for name in dict.fromkeys(sources) if (tenant, shard, name) not in self.plain)
        new = block("new", start, start + 9, tenant, shard, level=1)
        outcome = self.index.replace(tenant, shard, sources, [new])
        if missing:
            assert outcome == SourcesMissing(missing)
        else:
            removed = tuple(self.plain.pop((tenant, shard, name)) for name in dict.fromkeys(sources))
            fresh = (tenant, shard, "new") not in self.plain
            assert outcome == Replaced(removed, (new,) if fresh else ())
            self.plain.setdefault((tenant, shard, "new"), new)

    @rule(tenant=TENANTS, shard=SHARDS, names=st.lists(st.integers(0, 15), max_size=3))
    def remove(self, tenant: str, shard: int, names: list[int]) -> None:
        gone = [self.plain.pop((tenant, shard, f"b{name}"), None) for name in names]
        found = self.index.remove(tenant, shard, [f"b{name}" for name in names])
        assert found == tuple(each for each in gone if each is not None)

    @rule(before=st.floats(-100, 500), limit=st.integers(1, 4))
    def retain(self, before: float, limit: int) -> None:
        timed = [each for each in self.plain.values() if each.min_time is not None]
        old = {(each.tenant, each.shard, begin(each) // 60 * 60) for each in timed}
        for_good = sorted(key for key in old if key[2] + 60 <= before and all(
            end(each) < before for each in timed if (each.tenant, each.shard, begin(each) // 60 * 60) == key))
        spans = self.index.expired(before, limit)
        assert [(span.tenant, span.shard, span.timestamp) for span in spans] == for_good[:limit]
        for span in spans:
            for each in self.index.drop(span):
                assert end(each) < before
                del self.plain[each.tenant, each.shard, each.id]

    @rule(tenant=st.none() | TENANTS, shard=st.none() | SHARDS, start=TIMES | st.just(-math.inf),
          through=TIMES | st.just(math.inf))
    def ask(self, tenant: str | None, shard: int | None, start: float, through: float) -> None:
        expected = [each for each in self.plain.values()
                    if tenant in (None, each.tenant) and shard in (None, each.shard)
                    and (each.min_time is None or (begin(each) <= through and end(each) >= start))]
        expected.sort(key=lambda each: (begin(each), each.tenant, each.shard, each.id))
        assert list(self.index.blocks(tenant=tenant, shard=shard, start=start, end=through)) == expected

    @invariant()
    def tells_the_same(self) -> None:
        self.index.audit()
        assert len(self.index) == len(self.plain)
        for (tenant, shard, name), known in self.plain.items():
            assert self.index.get(tenant, shard, name) is not None
            assert self.index.get(tenant, shard, name) == known


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(stateful_step_count=30, max_examples=60)
