# SPDX-License-Identifier: Apache-2.0
"""Ranges and metaranges: cases with known answers, and the promises of the split rule.

A case's letter stands for a key that begins with it and either closes its range or does not, as the case has it.
Ours differs from lakeFS in one point: a last range that the rule has not closed continues with
appended keys, because only so equal content has equal ids.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compactlib.errors import InvalidInput
from compactlib.files.checksum import crc32
from compactlib.objects import MemoryObjects
from compactlib.staging import CommittedRanges, Record, SplitRule
from compactlib.staging.ranges.metarange import UNLIMITED
from compactlib.staging.values import Applied, Change, MetaRangeId
from tests.staging.committed.plain_sets import changed, committed, written
from tests.staging.hooked_objects import HookedObjects

RULE = SplitRule(max_bytes=UNLIMITED, raggedness=7)


def key(letter: str, *, closes: bool = False) -> bytes:
    """The first key of this letter that closes its range, or that does not."""
    return next(found for number in range(1000)
                if RULE.is_cut(found := b"%s%03d" % (letter.encode(), number)) == closes)


def layer_of(ranges: str) -> tuple[CommittedRanges, dict[str, bytes], MetaRangeId | None, dict[bytes, Record]]:
    """A layer with these ranges: `"ac d"` is {a, c} and {d}, each closed by its last key."""
    layer = committed(rule=RULE)
    keys = {letter: key(letter, closes=letter == each[-1]) for each in ranges.split() for letter in each}
    content = {name: Record.of(name) for name in keys.values()}
    base = written(layer, content) if content else None
    assert [entry.count for entry in layer.ranges_of(base)] == [len(each) for each in ranges.split()]
    return layer, keys, base, content


def letters(layer: CommittedRanges, applied: Applied) -> list[str]:
    """The result's ranges, by the letters of their keys."""
    names = [found[:1].decode() for found, _ in layer.scan(applied.metarange_id)]
    return ["".join(names.pop(0) for _ in range(entry.count)) for entry in layer.ranges_of(applied.metarange_id)]


def counts(applied: Applied) -> tuple[int, int, int]:
    return applied.added, applied.changed, applied.removed


def io(applied: Applied) -> tuple[int, int, int]:
    return applied.ranges_reused, applied.ranges_read, applied.ranges_written


def new(*names: str) -> dict[bytes, Change]:
    return {key(name): Record.of(b"new") for name in names}


def apply(layer: CommittedRanges, base: MetaRangeId | None, changes: Mapping[bytes, Change]) -> Applied:
    return layer.apply(base, sorted(changes.items()))


def test_a_change_inside_a_range_one_taken_over_and_an_appended_one() -> None:
    layer, _, base, _ = layer_of("ac d")
    applied = apply(layer, base, new("b", "e", "f"))
    assert letters(layer, applied) == ["abc", "d", "ef"]
    assert (counts(applied), io(applied)) == ((3, 0, 0), (1, 1, 2))


def test_a_last_range_that_only_the_end_closed_is_written_again() -> None:
    layer = committed(rule=RULE)
    content = {key("a"): Record.of(b"a"), key("c", closes=True): Record.of(b"c"), key("d"): Record.of(b"d")}
    applied = apply(layer, written(layer, content), new("b", "e", "f"))
    assert letters(layer, applied) == ["abc", "def"]  # d is not kept apart: written from scratch, it would not be
    assert (counts(applied), io(applied)) == ((3, 0, 0), (0, 2, 2))


def test_before_the_first_and_after_the_last_key() -> None:
    layer, _, base, _ = layer_of("bc de")
    applied = apply(layer, base, new("a", "f"))
    assert letters(layer, applied) == ["abc", "de", "f"]
    assert (counts(applied), io(applied)) == ((2, 0, 0), (1, 1, 2))


def test_two_changed_with_an_unread_one_between() -> None:
    layer, keys, base, _ = layer_of("abc d e")
    applied = apply(layer, base, {keys["b"]: Record.of(b"b'"), keys["e"]: Record.of(b"e'")})
    assert letters(layer, applied) == ["abc", "d", "e"]
    assert (counts(applied), io(applied)) == ((0, 2, 0), (1, 2, 2))


def test_equal_identities_with_new_data_change_nothing() -> None:
    layer, keys, base, content = layer_of("abc d e")
    applied = apply(layer, base, {keys["b"]: Record(content[keys["b"]].identity, b"other data")})
    assert (applied.metarange_id, counts(applied), applied.ranges_written) == (base, (0, 0, 0), 0)
    assert layer.get(base, keys["b"]) == content[keys["b"]]


def test_a_range_whose_last_record_goes_vanishes() -> None:
    layer, keys, base, _ = layer_of("abc d e")
    applied = apply(layer, base, {keys["b"]: None, keys["e"]: None})
    assert letters(layer, applied) == ["ac", "d"]
    assert (counts(applied), io(applied)) == ((0, 0, 2), (1, 2, 1))


@pytest.mark.parametrize("base", [None, "empty"])
def test_a_tombstone_on_an_empty_base_changes_nothing(base: str | None) -> None:
    layer = committed(rule=RULE)
    empty = layer.apply(None, []).metarange_id
    applied = apply(layer, None if base is None else empty, {b"a": None})
    assert (applied.metarange_id, counts(applied)) == (empty, (0, 0, 0))


def test_tombstones_beyond_the_end_are_ignored() -> None:
    layer, _, base, _ = layer_of("cd")
    applied = apply(layer, base, {**new("a"), key("e"): None, key("f"): None})
    assert letters(layer, applied) == ["acd"]
    assert counts(applied) == (1, 0, 0)


def test_a_tombstone_in_the_third_of_four_ranges() -> None:
    layer, keys, base, _ = layer_of("ab cd efg hi")
    applied = apply(layer, base, {keys["f"]: None})
    assert letters(layer, applied) == ["ab", "cd", "eg", "hi"]
    assert (counts(applied), io(applied)) == ((0, 0, 1), (3, 1, 1))


def test_a_tombstone_that_takes_the_cut_away_joins_two_ranges() -> None:
    layer, keys, base, _ = layer_of("ab cd efg hi")
    applied = apply(layer, base, {keys["g"]: None})
    assert letters(layer, applied) == ["ab", "cd", "efhi"]  # nothing closes f any more: it joins its neighbour
    assert io(applied) == (2, 2, 1)


def test_unsorted_keys_are_refused_and_nothing_is_published() -> None:
    for pairs in ([(b"b", Record.of(b"")), (b"a", None)], [(b"a", None), (b"a", None)]):
        layer = committed(rule=RULE)
        with pytest.raises(InvalidInput, match="must ascend strictly"):
            layer.apply(None, pairs)
        assert not list(layer.list("metaranges/"))


@pytest.mark.parametrize("record", [Record(None, b"data"), Record(b"identity", None), Record(bytearray(b"i"), b"")])  # type: ignore[arg-type]
def test_a_record_without_identity_or_data_is_refused(record: Record) -> None:
    with pytest.raises(InvalidInput):
        committed().apply(None, [(b"a", record)])


def test_equal_content_has_equal_ids_and_one_byte_of_data_another() -> None:
    layer, keys, base, content = layer_of("abc d e")
    assert written(committed(rule=RULE), content) == base
    other = dict(content)
    other[keys["b"]] = Record(content[keys["b"]].identity, b"B")
    found = written(layer, other)
    assert found != base
    pairs = zip(layer.ranges_of(base), layer.ranges_of(found), strict=True)
    assert [one.range_id == two.range_id for one, two in pairs] == [False, True, True]


CUTS = [key for key in (b"key%04d" % number for number in range(1000)) if crc32(key) % 100 == 0]


def test_ranges_are_cut_by_the_crc_32_of_keys() -> None:
    assert [int(key[3:]) for key in CUTS] == [132, 193, 402, 566, 617, 821, 958]
    layer = committed(rule=SplitRule(max_bytes=UNLIMITED, raggedness=100))
    base = written(layer, {b"key%04d" % number: Record.of(b"") for number in range(1000)})
    assert [entry.max_key for entry in layer.ranges_of(base)] == [*CUTS, b"key0999"]


def test_a_key_far_away_leaves_all_other_ranges_as_they_are() -> None:
    layer = committed(rule=SplitRule(raggedness=10))
    content = {b"key%04d" % number: Record.of(b"") for number in range(300)}
    base = written(layer, content)
    ids = {entry.range_id for entry in layer.ranges_of(base)}
    for name in (b"a", b"key0150+", b"z"):
        after = layer.apply(base, [(name, Record.of(b"far"))])
        assert len(ids - {entry.range_id for entry in layer.ranges_of(after.metarange_id)}) <= 1
        assert after.metarange_id == written(layer, changed(content, {name: Record.of(b"far")}))


def test_an_empty_metarange_is_not_no_metarange() -> None:
    layer, keys, base, _ = layer_of("a")
    applied = apply(layer, base, {keys["a"]: None})
    assert applied.metarange_id is not None
    assert list(layer.scan(applied.metarange_id)) == []
    assert [difference.kind for difference in layer.diff(base, applied.metarange_id)] == ["removed"]
    assert list(layer.diff(None, applied.metarange_id)) == []


def test_one_delete_in_one_of_ten_ranges() -> None:
    objects = HookedObjects(MemoryObjects())
    layer = CommittedRanges(objects, rule=RULE, cache_bytes=0)
    content = {b"%s%03d" % (letter, number): Record.of(b"") for letter in (b"a", b"b", b"c") for number in range(300)}
    cuts = [name for name in sorted(content) if RULE.is_cut(name)][:10]
    content = {name: record for name, record in content.items() if name <= cuts[-1]}
    base = written(layer, content)
    ranges = layer.ranges_of(base)
    assert len(ranges) == 10
    chosen = next(entry for entry in ranges if entry.count >= 3)
    inside = next(name for name in sorted(content) if chosen.min_key < name < chosen.max_key)
    objects.counts.clear()
    applied = layer.apply(base, [(inside, None)])
    assert (applied.ranges_written, applied.ranges_reused, applied.ranges_read) == (1, 9, 1)
    assert (objects.counts["create ranges"], objects.counts["get ranges"]) == (1, 1)
    objects.counts.clear()
    assert [difference.key for difference in layer.diff(base, applied.metarange_id)] == [inside]
    assert objects.counts["get ranges"] == 2


def test_small_neighbours_are_kept_together_by_the_same_rule() -> None:
    content = {b"key%04d" % number: Record.of(b"") for number in range(500)}
    small = committed(rule=SplitRule(raggedness=5))
    large = committed(rule=SplitRule(raggedness=5, min_bytes=1000))
    sizes = [entry.size_bytes for entry in large.ranges_of(written(large, content))]
    assert all(size >= 1000 for size in sizes[:-1])
    assert len(sizes) * 3 < len(small.ranges_of(written(small, content)))


def test_a_base_of_another_rule_is_cut_again_as_a_whole() -> None:
    objects = MemoryObjects()
    content = {b"key%04d" % number: Record.of(b"") for number in range(200)}
    old = written(committed(objects, rule=SplitRule(raggedness=9)), content)
    layer = committed(objects, rule=SplitRule(raggedness=5))
    applied = layer.apply(old, [])
    assert applied.ranges_read == len(layer.ranges_of(old))
    assert applied.changes == 0
    assert applied.metarange_id == written(layer, content)


def test_a_merge_opens_only_changed_ranges() -> None:
    opened: set[str] = set()
    objects = HookedObjects(MemoryObjects())
    layer = CommittedRanges(objects, rule=SplitRule(raggedness=20), cache_bytes=0)
    content = {b"key%04d" % number: Record.of(b"") for number in range(400)}
    base = written(layer, content)
    ours = layer.apply(base, [(b"key0100", Record.of(b"ours"))]).metarange_id
    theirs = layer.apply(base, [(b"key0300", Record.of(b"theirs"))]).metarange_id
    objects.hook = lambda operation, name: opened.add(name) if operation == "get" and "meta" not in name else None
    merged = layer.merge(base, theirs, ours)

    def range_with(metarange_id: MetaRangeId, name: bytes) -> str:
        return next(f"ranges/{entry.range_id}" for entry in layer.ranges_of(metarange_id) if name <= entry.max_key)

    assert opened == {range_with(base, b"key0300"), range_with(theirs, b"key0300")}
    assert merged.ranges_written == 0  # the source has the very range that comes out
    assert merged.metarange_id == written(layer, changed(content, {b"key0100": Record.of(b"ours"),
                                                                   b"key0300": Record.of(b"theirs")}))


def test_a_diff_opens_only_ranges_of_one_side() -> None:
    objects = HookedObjects(MemoryObjects())
    layer = CommittedRanges(objects, rule=SplitRule(raggedness=20), cache_bytes=0)
    content = {b"key%04d" % number: Record.of(b"") for number in range(400)}
    base = written(layer, content)
    longer = layer.apply(base, [(b"z%03d" % number, Record.of(b"")) for number in range(100)]).metarange_id
    shared = {entry.range_id for entry in layer.ranges_of(base)} & {entry.range_id for entry in layer.ranges_of(longer)}
    opened: list[str] = []
    objects.hook = lambda operation, name: opened.append(name) if operation == "get" and "meta" not in name else None
    assert len(list(layer.diff(base, longer))) == 100
    assert not {f"ranges/{range_id}" for range_id in shared} & set(opened)
    assert len(opened) == len(set(opened))
