# SPDX-License-Identifier: Apache-2.0
"""Files of ranges that are kept near by: a restart does not fetch them again, and nothing depends on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.objects import LocalObjects, MemoryObjects, ObjectStoreFailed
from compactlib.staging import CommittedRanges, Record, SplitRule
from compactlib.staging.errors import DamagedRange, RangeNotFound
from compactlib.staging.ranges.tier import RangeTier
from compactlib.staging.values import LiveMetaRanges, MetaRangeId
from tests.staging.committed.plain_sets import RecordSet, written
from tests.staging.hooked_objects import HookedObjects

RULE = SplitRule(min_bytes=0, max_bytes=100, raggedness=1 << 30)
RECORDS: RecordSet = {b"%03d" % number: Record.of(b"v" * 100) for number in range(10)}


def layer(objects: HookedObjects, folder: Path, near_bytes: int = 1 << 20) -> CommittedRanges:
    return CommittedRanges(objects, rule=RULE, near=LocalObjects(folder), near_bytes=near_bytes)


def world(clock: ManualClock | None = None) -> tuple[HookedObjects, MetaRangeId]:
    objects = HookedObjects(MemoryObjects(clock=clock))
    metarange_id = written(CommittedRanges(objects, rule=RULE), RECORDS)
    objects.counts.clear()
    return objects, metarange_id


def gets(objects: HookedObjects) -> int:
    count = objects.counts["get ranges"] + objects.counts["get metaranges"]
    objects.counts.clear()
    return count


def tier_of(ranges: CommittedRanges) -> RangeTier:
    tier = ranges.files.tier
    assert tier is not None
    ranges.audit()
    return tier


def test_a_restart_fetches_nothing_again(tmp_path: Path) -> None:
    objects, metarange_id = world()
    assert dict(layer(objects, tmp_path).scan(metarange_id)) == RECORDS
    assert gets(objects) == 11
    again = layer(objects, tmp_path)
    assert dict(again.scan(metarange_id)) == RECORDS
    assert gets(objects) == 0
    assert sorted(path.parent.name for path in tmp_path.rglob("*/*") if path.is_file()) == (
        ["near-metaranges"] + ["near-ranges"] * 10)


def test_no_more_is_kept_than_may_be_and_what_is_read_stays(tmp_path: Path) -> None:
    objects, metarange_id = world()
    size = next(iter(objects.inner.list("ranges/"))).size_bytes
    index = next(iter(objects.inner.list("metaranges/"))).size_bytes
    (tmp_path / "near-ranges").mkdir(parents=True)
    (tmp_path / "near-ranges" / "notes.txt").write_text("not ours")
    first = layer(objects, tmp_path, index + 2 * size)
    for number in (0, 1, 0, 2, 0, 3, 0):
        first.files.cache.clear()
        assert first.get(metarange_id, b"%03d" % number) is not None
    tier_of(first)
    gets(objects)
    first.files.cache.clear()
    assert first.get(metarange_id, b"000") is not None
    assert gets(objects) == 0
    smaller = layer(objects, tmp_path, index + size)
    tier_of(smaller)
    left = {path.name for path in (tmp_path / "near-ranges").iterdir()}
    assert len(left) <= 3
    assert "notes.txt" in left
    assert dict(layer(objects, tmp_path, 0).scan(metarange_id)) == RECORDS
    assert {path.name for path in (tmp_path / "near-ranges").iterdir()} == {"notes.txt"}
    with pytest.raises(InvalidInput, match="near_bytes"):
        layer(objects, tmp_path, -1)


@pytest.mark.parametrize("damage", [b"", b"x" * 30, b"other"], ids=["empty", "not a range", "another range"])
def test_what_is_damaged_or_missing_near_by_is_fetched(tmp_path: Path, damage: bytes) -> None:
    objects, metarange_id = world()
    list(layer(objects, tmp_path).scan(metarange_id))
    paths = sorted(path for path in tmp_path.rglob("*/*") if path.is_file())
    other = paths[-1].read_bytes()
    for path in paths[:-1]:
        path.write_bytes(other if damage == b"other" else damage)
    again = layer(objects, tmp_path)
    paths[-1].unlink()  # by another process
    gets(objects)
    assert dict(again.scan(metarange_id)) == RECORDS
    assert gets(objects) == 11
    assert dict(layer(objects, tmp_path).scan(metarange_id)) == RECORDS
    assert gets(objects) == 0
    tier = tier_of(again)
    assert tier.failures == 10
    assert isinstance(tier.last_error, DamagedRange)


@pytest.mark.parametrize("operation", ["create", "get", "delete"])
def test_a_tier_that_refuses_breaks_no_read(operation: str) -> None:
    objects, metarange_id = world()

    def refuse(called: str, key: str) -> None:
        if called == operation:
            raise ObjectStoreFailed(operation=called, key=key, detail="on purpose")

    near = HookedObjects(MemoryObjects(), refuse)
    for near_bytes in (1 << 20, 300, 0):
        ranges = CommittedRanges(objects, rule=RULE, near=near, near_bytes=near_bytes, cache_bytes=0)
        for _ in range(2):
            assert dict(ranges.scan(metarange_id)) == RECORDS
        tier_of(ranges)
    assert objects.counts["get ranges"]


def test_a_verification_and_a_collection_look_into_the_store(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    objects, metarange_id = world(clock)
    ranges = CommittedRanges(objects, rule=RULE, near=LocalObjects(tmp_path), clock=clock)
    list(ranges.scan(metarange_id))
    gone, damaged = (entry.range_id for entry in ranges.ranges_of(metarange_id)[:2])
    objects.inner.delete(f"ranges/{gone}")
    objects.inner.delete(f"ranges/{damaged}")
    objects.inner.create(f"ranges/{damaged}", b"damaged")
    report = ranges.verify(LiveMetaRanges(needed=frozenset({metarange_id})))
    assert [type(each.error) for each in report.findings] == [RangeNotFound, DamagedRange]
    list(ranges.ranges_of(metarange_id))
    clock.advance(1_000)
    assert ranges.collect(lambda: LiveMetaRanges(needed=frozenset()), grace_seconds=1).metaranges_deleted == 1
    assert not [path for path in tmp_path.rglob("*/*") if path.is_file()]
    tier_of(ranges)


@pytest.mark.parametrize("near_bytes", [0, 300, 1 << 20])
def test_near_in_a_folder_of_ranges_takes_none_of_them_away(tmp_path: Path, near_bytes: int) -> None:
    """Whether they are another repository's, or its own."""
    own = LocalObjects(tmp_path)
    metarange_id = written(CommittedRanges(own, rule=RULE), RECORDS)
    ranges = CommittedRanges(own, rule=RULE, near=LocalObjects(tmp_path), near_bytes=near_bytes)
    assert dict(ranges.scan(metarange_id)) == RECORDS
    live = LiveMetaRanges(needed=frozenset({metarange_id}))
    assert ranges.verify(live).is_sound
    assert CommittedRanges(own, rule=RULE).verify(live).is_sound
    tier_of(ranges)
