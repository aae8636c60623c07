# SPDX-License-Identifier: Apache-2.0
"""Differences between HEAD and what was compacted: read as far as somebody asks, kept, and read once."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.objects import MemoryObjects
from compactlib.staging import Branch, CommittedRanges, DirtyBranch, Record, Repository, SplitRule, StagingOptions
from compactlib.staging.diff_cache import DiffCache
from tests.staging.committed.plain_sets import differences
from tests.staging.hooked_objects import HookedObjects
from tests.staging.world import World

keys = st.integers(0, 40).map(lambda number: b"%02d" % number)
contents = st.dictionaries(keys, st.sampled_from([Record.of(b"1"), Record.of(b"22")]), max_size=30)
questions = st.lists(st.tuples(keys | st.just(b""), keys | st.none(), st.none() | st.integers(0, 5)), max_size=12)


@given(left=contents, right=contents, asked=questions, max_bytes=st.sampled_from([0, 700, 2_000, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_whatever_was_asked_before_the_answer_is_the_same(
        left: dict[bytes, Record], right: dict[bytes, Record],
        asked: list[tuple[bytes, bytes | None, int | None]], max_bytes: int) -> None:
    layer = CommittedRanges(MemoryObjects(), rule=SplitRule(min_bytes=0, max_bytes=20, raggedness=1 << 30))
    before, after = (layer.apply(None, sorted(content.items())).metarange_id for content in (left, right))
    cache = DiffCache(layer, max_bytes)
    for start, end, count in [*asked, (b"", None, None)]:
        expected = [each for each in differences(left, right)
                    if each.key >= start and (end is None or each.key < end)]
        assert list(islice(cache.diff(before, after, start, end), count)) == expected[:count]
        assert list(layer.diff(before, after, start, end)) == expected
        cache.audit()
        assert list(cache.diff(before, before, start, end)) == []


def compacted_world(options: StagingOptions | None = None) -> tuple[HookedObjects, Branch, Repository]:
    """A branch of 100 ranges, in each of which a compaction has changed something; a second process's."""
    objects = HookedObjects(MemoryObjects())
    rule = SplitRule(min_bytes=0, max_bytes=100, raggedness=1 << 30)
    world = World(objects=objects, rule=rule)
    main = world.branch({f"{number:03}": "v" * 100 for number in range(100)})
    main.put_many({b"%03d" % number: b"w" * 100 for number in range(100)})
    world.compact()
    another = World(world.store, objects, rule=rule, options=options, seed=2)
    objects.counts.clear()
    return objects, another.repo.branch("main"), another.repo


def gets(objects: HookedObjects) -> int:
    count = objects.counts["get ranges"] + objects.counts["get metaranges"]
    objects.counts.clear()
    return count


def test_the_first_question_reads_what_answers_it() -> None:
    objects, main, _ = compacted_world(StagingOptions(diff_cache_bytes=0))
    assert main.is_dirty()
    without = gets(objects)
    assert without == 4
    objects, main, _ = compacted_world()
    assert main.is_dirty()
    assert gets(objects) <= without
    objects, main, _ = compacted_world()
    assert [each.key for each in main.diff(limit=2).differences] == [b"000", b"001"]
    assert gets(objects) == 2 + 2 * 3  # one more than the page shows whether another follows
    objects, main, _ = compacted_world()
    assert [each.key for each in main.diff(prefix=b"05").differences] == [b"05%d" % number for number in range(10)]
    assert gets(objects) == 2 + 2 * 10
    assert main.diff(prefix=b"zz").differences == ()
    assert gets(objects) == 0
    objects, main, _ = compacted_world()
    with pytest.raises(DirtyBranch):
        main.merge("main")
    assert gets(objects) <= without


def test_of_a_diff_beyond_the_limit_a_part_is_kept_and_what_was_kept_before_stays() -> None:
    objects = HookedObjects(MemoryObjects())
    layer = CommittedRanges(objects, rule=SplitRule(min_bytes=0, max_bytes=20, raggedness=1 << 30), cache_bytes=0)
    after = layer.apply(None, [(b"%02d" % number, Record.of(b"x")) for number in range(40)]).metarange_id
    cache = DiffCache(layer, 5_000)
    gets(objects)
    assert len(list(cache.diff(None, after))) == 40
    first = gets(objects)
    assert len(list(cache.diff(None, after))) == 40
    again = gets(objects)
    assert 0 < again < first
    assert len(list(cache.diff(None, after, b"30"))) == 10
    assert len(list(cache.diff(None, after, b"", b"05"))) == 5
    gets(objects)
    assert len(list(cache.diff(None, after, b"", b"05"))) == 5
    assert gets(objects) == 0
    cache.audit()


def test_what_was_read_is_not_read_again() -> None:
    objects, main, repo = compacted_world()
    repo.context.committed.files.cache.clear()
    assert len(list(main.differences(prefix=b"03"))) == 10
    gets(objects)
    everything = list(main.differences())
    assert len(everything) == 100
    assert gets(objects) == 2 * 90
    repo.context.committed.files.cache.clear()
    assert list(main.differences()) == everything
    assert len(list(main.differences(prefix=b"01"))) == 10
    assert gets(objects) == 0
