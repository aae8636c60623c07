# SPDX-License-Identifier: Apache-2.0
"""The Spark merge of a staging compaction: the ids and counts of the merge on one machine, and nothing left over."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pyspark.sql import SparkSession

from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.objects.errors import ObjectStoreFailed
from compactlib.spark import StagingMerge
from compactlib.staging import CommittedRanges, ParquetFormat, Record, Repository, SplitRule
from compactlib.staging.errors import DamagedRange, UnsortedKeys
from compactlib.staging.values import Change

pytestmark = pytest.mark.spark


def key(number: int) -> bytes:
    return b"path/part-%05d" % number


def random_layers(rng: random.Random, low: int, high: int) -> list[dict[bytes, Change]]:
    """Three layers of changes of which many meet: puts, tombstones, and puts that say what is there."""
    def change(number: int) -> Change:
        kind = rng.randrange(4)
        return None if kind == 0 else Record.of(b"old %d" % number if kind == 1 else b"new %d" % rng.randrange(9))

    return [{key(number): change(number) for number in rng.sample(range(low, high), (high - low) // 4)}
            for _ in range(3)]


CASES = [
    (SplitRule(raggedness=60), 1000, (300, 500)),  # a run in the middle; the rest is not touched
    (SplitRule(raggedness=60, min_bytes=2000, max_bytes=5000), 1000, (0, 1200)),  # everywhere, and beyond the end
    (SplitRule(raggedness=60), 0, (0, 500)),  # nothing was committed before
]


@pytest.mark.parametrize(("rule", "count", "touched"), CASES)
def test_the_ids_and_counts_are_those_of_one_machine(spark: SparkSession, tmp_path: Path, rule: SplitRule, count: int,
                                                     touched: tuple[int, int]) -> None:
    rng = random.Random(count)
    content = [(key(number), Record.of(b"old %d" % number)) for number in range(count)]
    layers = random_layers(rng, *touched)
    newest: dict[bytes, Change] = {name: change for layer in reversed(layers) for name, change in layer.items()}

    local = CommittedRanges(MemoryObjects(), rule=rule)
    base = local.apply(None, content).metarange_id if count else None
    expected = local.apply(base, sorted(newest.items()))

    open_objects = functools.partial(LocalObjects, tmp_path)
    layer = CommittedRanges(open_objects(), rule=rule, range_format=ParquetFormat())
    assert not count or layer.apply(None, content).metarange_id == base
    merge = StagingMerge(spark, layer, open_objects, partitions=4)
    applied = merge.apply(base, sorted(newest.items()))
    assert applied.metarange_id == expected.metarange_id
    assert (applied.added, applied.changed, applied.removed) == (expected.added, expected.changed, expected.removed)
    assert list(layer.scan(applied.metarange_id)) == list(local.scan(expected.metarange_id))
    assert not list(open_objects().list("incoming/"))
    if count and touched[1] < count:
        assert applied.ranges_reused > 0.5 * len(layer.ranges_of(base))
    # Spark opens the very files.
    paths = [str(tmp_path / "ranges" / entry.range_id) for entry in layer.ranges_of(applied.metarange_id)]
    rows = spark.read.parquet(*paths).select("key", "data").orderBy("key").toArrow().to_pylist()
    assert [(row["key"], row["data"]) for row in rows] == [
        (name, record.data) for name, record in layer.scan(applied.metarange_id)]


def test_a_compactor_runs_its_rewrite_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    open_objects = functools.partial(LocalObjects, tmp_path)
    committed = CommittedRanges(open_objects(), rule=SplitRule(raggedness=20), range_format=ParquetFormat())
    repo = Repository(MemoryStore(), committed)
    main = repo.create_branch("main")
    for number in range(200):
        main.put(key(number), b"%d" % number)
    main.commit("first")
    for number in range(50, 90):
        main.delete(key(number))
    main.put(key(500), b"new")
    before = [(one.kind, one.key) for one in main.differences()]
    assert not repo.compact(executor=StagingMerge(spark, committed, open_objects)).is_empty
    assert [(one.kind, one.key) for one in main.differences()] == before
    assert len(before) == 41


def test_what_it_cannot_do_has_a_name(spark: SparkSession, tmp_path: Path) -> None:
    open_objects = functools.partial(LocalObjects, tmp_path)
    committed = CommittedRanges(open_objects())
    with pytest.raises(InvalidInput):
        StagingMerge(spark, committed, open_objects, partitions=0)

    class Foreign:
        name = "foreign"

    with pytest.raises(InvalidInput, match="CompactTokens only"):
        StagingMerge(spark, committed, open_objects).run([Foreign()])  # type: ignore[list-item]
    merge = StagingMerge(spark, committed, open_objects)
    assert merge.apply(None, []).changes == 0
    assert not list(open_objects().list("incoming/"))


def test_keys_that_do_not_ascend_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    open_objects = functools.partial(LocalObjects, tmp_path)
    merge = StagingMerge(spark, CommittedRanges(open_objects()), open_objects)
    once: list[tuple[bytes, Change]] = [(key(1), Record.of(b"1")), (key(2), None)]
    for changes in ([*once, once[-1]], [once[0], *once], [*reversed(once)]):
        with pytest.raises(UnsortedKeys):
            merge.apply(None, changes)
    assert merge.apply(None, once).added == 1
    assert not list(open_objects().list("incoming/"))


def test_changes_that_cannot_be_removed_again_are_left(spark: SparkSession, tmp_path: Path) -> None:
    class Keeping(LocalObjects):
        def delete(self, keys: Iterable[str]) -> None:
            raise ObjectStoreFailed(operation="delete", key=next(iter(keys)), detail="not now")

    merge = StagingMerge(spark, CommittedRanges(Keeping(tmp_path)), functools.partial(LocalObjects, tmp_path))
    assert merge.apply(None, [(key(1), Record.of(b"1"))]).added == 1
    assert len(list(LocalObjects(tmp_path).list("incoming/"))) == 1


def test_ranges_are_written_in_the_format_of_the_committed_layer(spark: SparkSession, tmp_path: Path) -> None:
    """Changes all over, with a range that has none behind each that has some, are not one Spark task each."""
    open_objects = functools.partial(LocalObjects, tmp_path)
    rule = SplitRule(raggedness=10)
    content = [(key(number), Record.of(b"old %d" % number)) for number in range(1000)]
    plain = CommittedRanges(open_objects(), rule=rule)
    base = plain.apply(None, content).metarange_id
    changes: list[tuple[bytes, Change]] = [
        (entry.min_key, Record.of(b"new")) for entry in plain.ranges_of(base)[::2]]
    applied = StagingMerge(spark, plain, open_objects, partitions=2).apply(base, changes)
    local = CommittedRanges(MemoryObjects(), rule=rule)
    expected = local.apply(local.apply(None, content).metarange_id, changes)
    assert (applied.metarange_id, applied.changed) == (expected.metarange_id, len(changes))
    made = {entry.range_id for entry in plain.ranges_of(applied.metarange_id)}
    assert not {open_objects().get(f"ranges/{each}")[:4] for each in made} & {b"PAR1"}


def test_damage_that_a_worker_finds_comes_back_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    open_objects = functools.partial(LocalObjects, tmp_path)
    committed = CommittedRanges(open_objects(), rule=SplitRule(raggedness=20), range_format=ParquetFormat())
    base = committed.apply(None, [(key(number), Record.of(b"1")) for number in range(100)]).metarange_id
    damaged = committed.ranges_of(base)[1]
    path = tmp_path / "ranges" / damaged.range_id
    path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    with pytest.raises(DamagedRange) as caught:
        StagingMerge(spark, committed, open_objects).apply(base, [(damaged.min_key, None)])
    assert caught.value.path == f"ranges/{damaged.range_id}"
    assert not list(open_objects().list("incoming/"))
    assert [file.id for file in committed.files.list("metaranges/")] == [base]


_folders = itertools.count()
KEYS = st.binary(min_size=1, max_size=4).map(lambda key: key.translate(bytes([0, 1, 47, 255] * 64)))
"""Few bytes, the first and the last among them, so that keys of different layers meet."""
RECORDS = st.builds(Record, st.binary(max_size=2), st.binary(max_size=40))
LAYERS = st.lists(st.dictionaries(KEYS, st.none() | RECORDS, max_size=60), max_size=4)
HUGE = Record.of(bytes(range(256)) * 8192)


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.dictionaries(KEYS, RECORDS, max_size=80),
       layers=LAYERS, partitions=st.integers(1, 9), most=st.sampled_from([60, 400, 1 << 20]))
@example(base={key(n): Record.of(b"%d" % n) for n in range(50)}, partitions=4, most=200,
         layers=[{key(n): None for n in range(50)}])
@example(base={}, partitions=9, most=200, layers=[{key(3): None}, {}, {key(4): None}])
@example(base={key(n): Record.of(b"%d" % n) for n in range(50)}, partitions=3, most=1 << 20,
         layers=[{key(25): HUGE}, {key(25): None}, {key(24): HUGE}])
@example(base={}, partitions=3, most=100, layers=[{key(n): Record.of(b"")} for n in range(60)])
def test_whatever_the_layers_the_ids_are_those_of_one_machine(
        spark: SparkSession, tmp_path: Path, base: dict[bytes, Record], layers: list[dict[bytes, Change]],
        partitions: int, most: int) -> None:
    """Everything removed, tombstones for nothing, one huge value, many layers of one key, and what Hypothesis finds."""
    rule = SplitRule(raggedness=7, min_bytes=min(most, 100), max_bytes=most)
    newest: dict[bytes, Change] = {name: change for layer in reversed(layers) for name, change in layer.items()}
    local = CommittedRanges(MemoryObjects(), rule=rule)
    first = local.apply(None, sorted(base.items())).metarange_id if base else None
    expected = local.apply(first, sorted(newest.items()))
    open_objects = functools.partial(LocalObjects, tmp_path / str(next(_folders)))
    layer = CommittedRanges(open_objects(), rule=rule, range_format=ParquetFormat())
    if base:
        layer.apply(None, sorted(base.items()))
    applied = StagingMerge(spark, layer, open_objects, partitions=partitions).apply(
        first, sorted(newest.items()))
    assert applied.metarange_id == expected.metarange_id
    assert (applied.added, applied.changed, applied.removed) == (expected.added, expected.changed, expected.removed)
    assert layer.ranges_of(applied.metarange_id) == local.ranges_of(expected.metarange_id)
    assert list(layer.scan(applied.metarange_id)) == list(local.scan(expected.metarange_id))
    assert not list(open_objects().list("incoming/"))
