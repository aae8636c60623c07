# SPDX-License-Identifier: Apache-2.0
"""The committed layer against dictionaries: random histories; equal content has equal ids, however it came about."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.budget import Budget
from compactlib.objects import MemoryObjects
from compactlib.staging import Record, SplitRule
from compactlib.staging.ranges.apply import Apply, RangeWriter
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import RangeFormat
from compactlib.staging.values import Change, LiveMetaRanges, MetaRangeId
from compactlib.staging.verify import verify_ranges
from tests.staging.committed.plain_sets import RecordSet, changed, committed, differences, written
from tests.staging.committed.range_formats import FORMATS

rules = st.builds(SplitRule, min_bytes=st.sampled_from([0, 0, 40, 90]), max_bytes=st.sampled_from([90, 200, 1 << 20]),
                  raggedness=st.integers(1, 12))
keys = st.one_of(st.binary(min_size=1, max_size=3), st.integers(0, 60).map(lambda number: b"key%04d" % number))
records = st.builds(Record, st.sampled_from([b"", b"i", b"\0", b"j" * 20]), st.binary(max_size=12))
histories = st.lists(st.dictionaries(keys, st.none() | records, max_size=25), max_size=6)


@pytest.mark.parametrize("range_format", FORMATS, ids=lambda each: each.name)
@given(history=histories, rule=rules)
@settings(max_examples=80, deadline=None)
def test_random_histories_end_in_the_ids_of_a_write_from_scratch(
        range_format: RangeFormat, history: list[dict[bytes, Change]], rule: SplitRule) -> None:
    layer = committed(rule=rule, range_format=range_format)
    content: RecordSet = {}
    at: MetaRangeId | None = None
    for changes in history:
        before, content = content, changed(content, changes)
        applied = layer.apply(at, sorted(changes.items()))
        fresh = committed(rule=rule)
        again = written(fresh, content)
        assert applied.metarange_id == again
        assert layer.ranges_of(applied.metarange_id) == fresh.ranges_of(again)
        expected = differences(before, content)
        assert applied.changes == len(expected)
        assert [applied.added, applied.changed, applied.removed] == [
            sum(difference.kind == kind for difference in expected) for kind in ("added", "changed", "removed")]
        assert list(layer.diff(at, applied.metarange_id)) == expected
        assert dict(layer.scan(applied.metarange_id)) == content
        at = applied.metarange_id
    report = verify_ranges(layer, LiveMetaRanges(needed=frozenset() if at is None else frozenset({at})), Budget())
    assert (report.is_sound, report.records) == (True, len(content))


@given(base=st.dictionaries(keys, records, max_size=25), left=st.dictionaries(keys, st.none() | records, max_size=12),
       start=keys, rule=rules)
@settings(max_examples=100, deadline=None)
def test_reads_from_any_start_and_after_any_seek(base: RecordSet, left: dict[bytes, Change], start: bytes,
                                                 rule: SplitRule) -> None:
    layer = committed(rule=rule, cache_bytes=0)
    right = changed(base, left)
    one, two = written(layer, base), written(layer, right)
    expected = [pair for pair in sorted(right.items()) if pair[0] >= start]
    assert list(layer.scan(two, start)) == expected
    scan = layer.scan(two)
    for _ in range(3):
        next(scan, None)
    scan.seek(start)
    assert list(scan) == expected
    scan.seek(b"")
    assert dict(scan) == right
    found = [difference for difference in differences(base, right) if difference.key >= start]
    assert list(layer.diff(one, two, start)) == found
    assert layer.get_many(two, {*base, start}) == {key: right[key] for key in {*base, start} if key in right}
    assert layer.get(two, start) == right.get(start)


@given(base=st.dictionaries(keys, records, max_size=20), ours=st.dictionaries(keys, st.none() | records, max_size=10),
       theirs=st.dictionaries(keys, st.none() | records, max_size=10), rule=rules,
       strategy=st.sampled_from(["source_wins", "destination_wins"]))
@settings(max_examples=100, deadline=None)
def test_merge_is_the_destination_with_the_sources_changes(
        base: RecordSet, ours: dict[bytes, Change], theirs: dict[bytes, Change], rule: SplitRule,
        strategy: str) -> None:
    layer = committed(MemoryObjects(), rule=rule)
    source, destination = changed(base, ours), changed(base, theirs)
    expected = dict(destination)
    for difference in differences(base, source):
        key = difference.key
        touched = any(other.key == key for other in differences(base, destination))
        if touched and strategy == "destination_wins":
            continue
        expected = changed(expected, {key: difference.right})
    merged = layer.merge(written(layer, base), written(layer, source), written(layer, destination),
                         "source_wins" if strategy == "source_wins" else "destination_wins")
    assert dict(layer.scan(merged.metarange_id)) == expected
    assert merged.metarange_id == written(layer, expected)
    assert merged.changes == len(differences(destination, expected))


@given(content=st.dictionaries(keys, records, max_size=40), borders=st.lists(keys, max_size=4), rule=rules)
@settings(max_examples=100, deadline=None)
def test_ranges_of_several_writers_equal_those_of_one_writer(
        content: RecordSet, borders: list[bytes], rule: SplitRule) -> None:
    files = RangeFiles(MemoryObjects(), rule=rule, cache_bytes=0)
    made = []
    for low, high in itertools.pairwise([b"", *sorted(set(borders)), b"\xff" * 9]):
        writer = RangeWriter(files, set(), Budget())
        rows = files.range_format.rows((key, content[key]) for key in sorted(content) if low <= key < high)
        writer.add(rows, rows.cut_keys(rule.raggedness))
        made += writer.end()
    joined = Apply(files, MetaRange(rule, made), iter(()), Budget(), known=set()).run(None)
    assert joined.metarange_id == written(committed(rule=rule), content)
    assert joined.ranges_read <= len(made)
