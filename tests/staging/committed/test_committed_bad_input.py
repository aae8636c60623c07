# SPDX-License-Identifier: Apache-2.0
"""Bad keys, bad files, a bad store: each raises a named error, and never gives a shorter result."""

from __future__ import annotations

import random

import pytest

from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CorruptData, InvalidInput, Unsupported
from compactlib.objects import MemoryObjects, ObjectStoreFailed
from compactlib.staging import CommittedRanges, Record, SplitRule
from compactlib.staging.errors import MergeConflict, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.collect import RangeCollector
from compactlib.staging.ranges.plain import MAGIC
from compactlib.staging.ranges.rows import RangeFormat, header_of
from compactlib.staging.values import MAX_KEY_BYTES, LiveMetaRanges, MetaRangeId
from compactlib.staging.verify import verify_ranges
from tests.staging.committed.plain_sets import RecordSet, committed, simple, written
from tests.staging.committed.range_formats import FORMATS
from tests.staging.hooked_objects import HookedObjects

both_formats = pytest.mark.parametrize("range_format", FORMATS, ids=lambda each: each.name)
CONTENT: RecordSet = {b"key%02d" % number: Record(b"%d" % number, b"data" * number) for number in range(12)}
ODD: RecordSet = {
    b"\0": Record(b"", b""), b"\0\0": Record(b"\0", b"\0"), b"a": Record(b"i", b""), b"\xff": Record(b"\xff", b"\xff"),
    b"\xff\xff": Record(b"", b"x" * (1 << 20)), b"\xff" * MAX_KEY_BYTES: Record(b"y" * 1000, b""),
}


def replace(objects: MemoryObjects, key: str, data: bytes) -> None:
    objects.delete([key])
    objects.create(key, data)


@both_formats
def test_odd_keys_and_values_are_read_unchanged(range_format: RangeFormat) -> None:
    layer = committed(range_format=range_format)
    base = written(layer, ODD)
    assert dict(layer.scan(base)) == ODD
    assert layer.get_many(base, ODD) == ODD
    assert base == written(committed(), ODD)


@pytest.mark.parametrize("key", [b"", b"x" * (MAX_KEY_BYTES + 1), "text", bytearray(b"x")])
def test_an_invalid_key_is_refused(key: bytes) -> None:
    layer = committed()
    with pytest.raises(InvalidInput):
        layer.apply(None, [(key, Record.of(b""))])
    assert not list(layer.list("metaranges/"))


@pytest.mark.parametrize("numbers", [{"min_bytes": -1}, {"min_bytes": 2, "max_bytes": 1}, {"max_bytes": 0},
                                     {"raggedness": 0}, {"raggedness": 1 << 32}])
def test_a_rule_that_cannot_be(numbers: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        SplitRule(**numbers)


@pytest.mark.parametrize("metarange_id", ["", "abc", "X" * 40, "A" * 40])
def test_an_invalid_id_is_refused(metarange_id: str) -> None:
    with pytest.raises(InvalidInput):
        committed().get(MetaRangeId(metarange_id), b"a")


def test_a_cache_and_a_prefix_that_cannot_be() -> None:
    with pytest.raises(InvalidInput):
        committed(cache_bytes=-1)
    with pytest.raises(InvalidInput):
        CommittedRanges(MemoryObjects(), prefix="no-slash")


def test_a_missing_metarange_and_a_missing_range_are_named() -> None:
    objects = MemoryObjects()
    base = written(committed(objects), CONTENT)
    layer = committed(objects, cache_bytes=0)
    gone = layer.ranges_of(base)[1]
    objects.delete([f"ranges/{gone.range_id}"])
    with pytest.raises(RangeNotFound) as range_missing:
        list(layer.scan(base))
    assert range_missing.value.range_id == gone.range_id
    with pytest.raises(RangeNotFound):
        layer.get(base, gone.min_key)
    with pytest.raises(RangeNotFound):
        list(layer.diff(None, base))
    with pytest.raises(RangeNotFound):
        layer.apply(base, [(gone.min_key, None)])
    objects.delete([f"metaranges/{base}"])
    for call in (lambda: layer.get(base, b"a"), lambda: layer.scan(base), lambda: layer.apply(base, []),
                 lambda: layer.diff(base, None),
                 lambda: RangeCollector(layer, lambda _: LiveMetaRanges(needed=frozenset([base])), 0).run()):
        with pytest.raises(MetaRangeNotFound):
            call()


@both_formats
def test_one_range_under_the_name_of_another_is_found_out(range_format: RangeFormat) -> None:
    objects = MemoryObjects()
    layer = committed(objects, range_format=range_format, cache_bytes=0)
    base = written(layer, CONTENT)
    first, second = layer.ranges_of(base)[:2]
    replace(objects, f"ranges/{first.range_id}", objects.get(f"ranges/{second.range_id}"))
    with pytest.raises(CorruptData):
        layer.get(base, first.min_key)


@both_formats
def test_any_byte_flipped_or_cut_is_named_or_harmless(range_format: RangeFormat) -> None:
    objects = MemoryObjects()
    layer = committed(objects, range_format=range_format, cache_bytes=0)
    base = written(layer, CONTENT)
    files = [f"metaranges/{base}", f"ranges/{layer.ranges_of(base)[0].range_id}"]
    chance = random.Random(1)
    for name in files:
        data = objects.get(name)
        for place in range(len(data)):
            flipped = bytearray(data)
            flipped[place] ^= 1 << chance.randrange(8)
            check_damaged(layer, objects, base, name, bytes(flipped))
        for length in range(0, len(data), 3):
            check_damaged(layer, objects, base, name, data[:length])
        check_damaged(layer, objects, base, name, data + b"\0")
        replace(objects, name, data)
    assert dict(layer.scan(base)) == CONTENT


def check_damaged(layer: CommittedRanges, objects: MemoryObjects, base: MetaRangeId, name: str, data: bytes) -> None:
    replace(objects, name, data)
    try:
        found = dict(layer.scan(base))
    except CorruptData as error:
        assert error.path == name
    else:
        assert found == CONTENT


def test_a_file_of_a_newer_version_is_named() -> None:
    objects = MemoryObjects()
    layer = committed(objects, cache_bytes=0)
    base = written(layer, CONTENT)
    name = f"ranges/{layer.ranges_of(base)[0].range_id}"
    replace(objects, name, header_of(MAGIC, 2).encode() + objects.get(name)[16:])
    with pytest.raises(Unsupported, match=name):
        list(layer.scan(base))


@both_formats
def test_each_format_reads_the_other_ones_files(range_format: RangeFormat) -> None:
    for other in FORMATS:
        objects = MemoryObjects()
        base = written(committed(objects, range_format=other), CONTENT)
        layer = committed(objects, range_format=range_format, cache_bytes=0)
        assert dict(layer.scan(base)) == CONTENT
        applied = layer.apply(base, [(b"key03", None), (b"new", Record.of(b""))])
        assert (applied.added, applied.removed) == (1, 1)


def test_an_error_of_the_store_is_never_an_answer() -> None:
    def fail(operation: str, key: str) -> None:
        if operation == "get" and key.startswith("ranges/"):
            raise ObjectStoreFailed(operation=operation, key=key, detail="on purpose")

    objects = HookedObjects(MemoryObjects())
    layer = CommittedRanges(objects, rule=SplitRule(raggedness=4), cache_bytes=0)
    base = written(layer, CONTENT)
    objects.hook = fail
    for call in (lambda: list(layer.scan(base)), lambda: list(layer.diff(None, base)),
                 lambda: layer.get(base, b"key03"), lambda: layer.apply(base, [(b"key03", None)]),
                 lambda: layer.merge(None, base, base), lambda: layer.get_many(base, [b"key03"])):
        with pytest.raises(ObjectStoreFailed):
            call()


def test_conflicts_name_the_keys_and_publish_nothing() -> None:
    layer = committed()
    base = written(layer, simple("a=1 b=1 c=1 d=1"))
    source = written(layer, simple("a=2 b=2 c=1 e=2"))
    destination = written(layer, simple("a=3 b=2 c=1 d=4 e=5"))
    before = {file.key for file in layer.list("metaranges/")}
    with pytest.raises(MergeConflict) as caught:
        layer.merge(base, source, destination)
    assert caught.value.keys == (b"a", b"d", b"e")
    assert {file.key for file in layer.list("metaranges/")} == before
    with pytest.raises(InvalidInput):
        layer.merge(base, source, destination, "ours")  # type: ignore[arg-type]


def test_a_merge_without_conflict() -> None:
    layer = committed()
    base = written(layer, simple("a=1 b=1 c=1"))
    merged = layer.merge(base, written(layer, simple("a=2 b=1")), written(layer, simple("a=1 b=1 c=1 d=4")))
    assert merged.metarange_id == written(layer, simple("a=2 b=1 d=4"))
    assert (merged.added, merged.changed, merged.removed) == (0, 1, 1)


def test_a_budget_that_runs_out_publishes_nothing() -> None:
    layer = committed()
    with pytest.raises(BudgetSpent):
        layer.apply(None, sorted(CONTENT.items()), budget=Budget(total_bytes=200))
    assert not list(layer.list("metaranges/"))
    assert written(layer, CONTENT) == written(committed(), CONTENT)


def test_a_second_read_is_served_by_the_cache() -> None:
    objects = HookedObjects(MemoryObjects())
    layer = CommittedRanges(objects, rule=SplitRule(raggedness=4))
    base = written(layer, CONTENT)
    dict(layer.scan(base))
    objects.counts.clear()
    assert dict(layer.scan(base)) == CONTENT
    assert not objects.counts


def live(*metaranges: MetaRangeId) -> LiveMetaRanges:
    return LiveMetaRanges(needed=frozenset(metaranges))


@both_formats
def test_verify_finds_sealed_files_with_wrong_content(range_format: RangeFormat) -> None:
    objects = MemoryObjects()
    layer = committed(objects, range_format=range_format)
    base = written(layer, CONTENT)
    sound = verify_ranges(layer, live(base), Budget())
    assert (sound.is_sound, sound.records, sound.findings) == (True, len(CONTENT), ())
    assert verify_ranges(layer, LiveMetaRanges(), Budget()).records == 0
    entry = next(entry for entry in layer.ranges_of(base) if entry.count > 2)
    records = [(key, CONTENT[key]) for key in CONTENT if entry.min_key <= key <= entry.max_key]
    wrong = [(key, Record(record.identity, b"wrong")) for key, record in records]
    replace(objects, f"ranges/{entry.range_id}", range_format.encode(range_format.rows(wrong), entry.range_id))
    found = verify_ranges(layer, live(base), Budget())
    assert {(finding.kind, finding.place) for finding in found.findings} == {("damage", f"ranges/{entry.range_id}")}
    assert all(isinstance(finding.error, CorruptData) for finding in found.findings)
    assert not found.is_sound


def test_verify_reads_each_range_once_and_lists_missing_ones() -> None:
    objects = MemoryObjects()
    layer = committed(objects)
    base = written(layer, CONTENT)
    more = layer.apply(base, [(b"zzzz", Record.of(b"1"))]).metarange_id
    both = verify_ranges(layer, live(base, more), Budget())
    entries = {entry.range_id: entry.count for each in (base, more) for entry in layer.ranges_of(each)}
    assert (both.is_sound, both.records) == (True, sum(entries.values()))
    objects.delete([f"metaranges/{base}"])
    first = layer.ranges_of(more)[0].range_id
    objects.delete([f"ranges/{first}"])
    found = verify_ranges(layer, live(base, more), Budget())
    assert {(each.kind, each.place) for each in found.findings} == {
        ("missing", f"metaranges/{base}"), ("missing", f"ranges/{first}")}
    assert not found.is_sound
    history = verify_ranges(layer, LiveMetaRanges(history=frozenset({base})), Budget())
    assert [each.kind for each in history.findings] == ["orphan"]
    assert history.is_sound
