# SPDX-License-Identifier: Apache-2.0
"""The Spark merge of a staging compaction: the ids and counts of the merge on one machine, and nothing left over."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.errors import CorruptData
from compactlib.kv import MemoryStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.spark import StagingMerge
from compactlib.staging import CommittedRanges, ParquetFormat, Record, Repository, SplitRule
from compactlib.staging.values import Change

pytestmark = pytest.mark.spark


def key(number: int) -> bytes:
    return b"path/part-%05d" % number


def random_layers(rng: random.Random, low: int, high: int) -> list[dict[bytes, Change]]:
    """Three layers of changes of which many meet: puts, tombstones, and puts of the present value."""
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
def test_the_ids_and_counts_equal_those_of_one_machine(spark: SparkSession, tmp_path: Path, rule: SplitRule, count: int,
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


def test_damage_found_by_a_worker_is_raised_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    open_objects = functools.partial(LocalObjects, tmp_path)
    committed = CommittedRanges(open_objects(), rule=SplitRule(raggedness=20), range_format=ParquetFormat())
    base = committed.apply(None, [(key(number), Record.of(b"1")) for number in range(100)]).metarange_id
    damaged = committed.ranges_of(base)[1]
    path = tmp_path / "ranges" / damaged.range_id
    path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    with pytest.raises(CorruptData) as caught:
        StagingMerge(spark, committed, open_objects).apply(base, [(damaged.min_key, None)])
    assert caught.value.path == f"ranges/{damaged.range_id}"
    assert not list(open_objects().list("incoming/"))
    assert [file.key for file in committed.list("metaranges/")] == [base]


"""Few bytes, the first and the last among them, so that keys of different layers meet."""
