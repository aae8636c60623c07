# SPDX-License-Identifier: Apache-2.0
"""Plans and views as values: what they refuse, how they print, what they forecast; and the history they leave."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib import contract
from compactlib.blobstore import BlobChoice, BlobPlan, BlobView, CompactAll, Greedy, StatsBased
from compactlib.blobstore.compaction.plan.last_plans import FILE_NAME, LastPlans, read_last_plans, write_last_plans
from compactlib.blobstore.compaction.plan.plan import PlannedSegment, forecast, plan_for, plan_for_choice
from compactlib.blobstore.compaction.plan.policy import Dying, SegmentView, ValidRecords
from compactlib.blobstore.model.names import SegmentName
from compactlib.errors import CorruptData, InvalidInput, StorageError, Unsupported
from compactlib.files import Files, LocalFiles
from compactlib.report import PolicyRecord
from compactlib.testing import explore_crashes, record
from tests.blobstore.policy_views import NOW, a_view, places, shares, toy


def a_plan(**changed: Any) -> BlobPlan:
    fields: dict[str, Any] = {
        "store": "s", "victims": (PlannedSegment(SegmentName(0, 0), 10, 4), PlannedSegment(SegmentName(2, 1), 7, 0)),
        "reference_time": 1.0, "planned_at": 2.0, "policy": PolicyRecord("p", ()), "benefit_segments": 1,
        "why": "because", **changed}
    return BlobPlan(**fields)


@pytest.mark.parametrize(("changed", "told"), [
    ({"why": ""}, "gives no reason"),
    ({"victims": (PlannedSegment(SegmentName(2, 0), 1, 1),) * 2}, "2_0 2 times"),
    ({"reference_time": -1.0}, "reference time -1.0"),
    ({"reference_time": float("nan")}, "reference time nan"),
])
def test_a_plan_refuses_what_cannot_be(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        a_plan(**changed)


def test_a_plan_adds_up_and_prints_itself() -> None:
    plan = a_plan()
    assert (plan.valid_bytes, plan.dead_bytes, plan.ratio, plan.is_full) == (4, 13, 4.0, False)
    assert plan.names == (SegmentName(0, 0), SegmentName(2, 1))
    assert plan.drops == (SegmentName(2, 1),)
    assert repr(plan) == ("<BlobPlan: compaction of 0_0, 2_1 of s by p: writes about 0 bytes, frees about 0, "
                          "frees 1 for sure: because>")
    assert str(plan).splitlines()[1].split()[:3] == ["store", "segment", "action"]
    assert [row["action"] for row in plan.to_dicts()] == ["copy", "drop"]
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert "full compaction of 0_0, 2_1" in repr(attrs.evolve(plan, kind="full", benefit_segments=0))


def test_a_plan_of_many_ranges_stays_one_line() -> None:
    plan = plan_for(toy([0, 900] * 40), Greedy(min_reclaimed_segments=40), NOW)
    assert "0_0, 2_0, 4_0, 6_0, 8_0 and 35 ranges more" in repr(plan)
    assert "0_0 .. 2_0" in repr(plan_for(toy([0, 0, 0]), StatsBased(), NOW))


@pytest.mark.parametrize(("changed", "told"), [
    ({"used_bytes": -1}, "used_bytes"), ({"segment_bytes": 300_000}, "no room beside"),
    ({"reference_time": float("inf")}, "reference_time"), ({"active": False}, "is the newest one"),
])
def test_a_view_refuses_what_cannot_be(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        a_view([1, 2], **changed)


def test_a_view_refuses_segments_that_do_not_ascend() -> None:
    view = a_view([1, 2])
    with pytest.raises(InvalidInput, match="0_0 follows 1_0"):
        attrs.evolve(view, segments=(view.segments[1], view.segments[0], view.segments[2]))


@pytest.mark.parametrize(("changed", "told"), [
    ({"valid_bytes": 11}, "11 valid of 10 used"), ({"valid_bytes": -1}, "-1 valid"),
    ({"dying": (Dying(2.0, 1), Dying(1.0, 1))}, "must ascend"), ({"dying": (Dying(2.0, 9),)}, "at most the 8"),
])
def test_a_segment_refuses_what_cannot_be(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        SegmentView(**{"name": SegmentName(0, 0), "used_bytes": 10, "valid_bytes": 8, **changed})


def test_what_is_dying_is_valid_until_strictly_after_its_time() -> None:
    segment = SegmentView(name=SegmentName(0, 0), used_bytes=10, valid_bytes=8, dying=(Dying(5.0, 3), Dying(7.0, 5)))
    assert [segment.valid_bytes_at(when) for when in (4.0, 5.0, 5.001, 7.0, 8.0)] == [8, 8, 5, 5, 0]


def test_eligible_runs_end_where_a_segment_may_not_be_taken() -> None:
    view = toy([1, 2, 3, 4], eligible=[True, True, False, True])
    assert [[segment.valid_bytes for segment in run] for run in view.eligible_runs] == [[1, 2], [4]]


def test_a_stores_part_of_a_time_is_its_own_and_always_the_same() -> None:
    parts = [toy([], store=f"store {number}").spread(100.0) for number in range(50)]
    assert all(0 <= part <= 100 for part in parts)
    assert min(parts) < 20 < 80 < max(parts)
    assert toy([], store="store 3").spread(100.0) == parts[3]


@given(st.lists(st.integers(0, 980), min_size=1, max_size=12))
def test_a_forecast_has_fewer_segments_by_the_benefit_and_all_valid_bytes(valid: list[int]) -> None:
    view = toy(valid)
    plan = plan_for(view, CompactAll(), NOW)
    after = forecast(plan, view)
    assert sum(segment.valid_bytes for segment in after.segments) == sum(valid)
    assert len(view.segments) - len(after.segments) >= plan.benefit_segments
    assert after.history.last_full_at == NOW


def test_an_output_takes_the_places_of_the_victims_copied_first_one_generation_on() -> None:
    view = toy([300, 900, 300, 300])
    three = BlobChoice([view.segments[3], view.segments[0], view.segments[2]], why="three")
    plan = plan_for_choice(view, three, CompactAll(), NOW)
    assert [str(segment.name) for segment in forecast(plan, view).segments] == ["1_0", "3_1", "4_0"]


# ------------------------------------------------------------------------------------------------- bytes on the disk

def counted(segments: Sequence[Sequence[int]], *, id_bytes: int = 8, tied: int = 0, **changed: Any) -> BlobView:
    """A store of real geometry whose segments hold valid records of these sizes, counted one by one."""
    view = a_view([sum(sizes) for sizes in segments], used=[ROOM] * len(segments), **{
        "segment_bytes": HEADER + ROOM, "header_bytes": HEADER, "max_blob_bytes": 0, "index_max_entries": 4,
        "capacity_bytes": 64 << 10, "used_bytes": 64 << 10, **changed})
    facts = [SegmentView(name=each.name, used_bytes=each.used_bytes, valid_bytes=each.valid_bytes,
                         disk_bytes=HEADER + ROOM + 500, valid=ValidRecords(
                             records=len(sizes), id_bytes=id_bytes * len(sizes), smallest=min(sizes, default=0),
                             largest=max(sizes, default=0), tied_bytes=min(tied, each.valid_bytes)))
             for each, sizes in zip(view.segments, segments, strict=False)]
    return attrs.evolve(view, segments=(*facts, *view.segments[len(facts):]))


HEADER, ROOM = 80, 1_000
INDEX_FILE, INDEX_ENTRY = 84, 68


def packed(segments: Sequence[Sequence[int]], index_max_entries: int, id_bytes: int = 8) -> int:
    """What the outputs take: each is filled until a record does not fit, and has an index file for so many records."""
    outputs: list[list[int]] = []
    for size in (size for sizes in segments for size in sizes):
        if not outputs or sum(outputs[-1]) + size > ROOM:
            outputs.append([])
        outputs[-1].append(size)
    return sum(HEADER + sum(each) + -(-len(each) // index_max_entries) * INDEX_FILE
               + len(each) * (INDEX_ENTRY + id_bytes) for each in outputs)


sizes_of_records = st.lists(st.lists(st.sampled_from([100, 250, 333]) | st.integers(30, 400), max_size=6).filter(
    lambda sizes: sum(sizes) <= ROOM), min_size=1, max_size=6)


@given(sizes_of_records, st.sampled_from([2, 4, 100]))
def test_what_is_exact_holds_to_the_byte_and_what_is_not_is_not_far_off(segments: list[list[int]], entries: int
                                                                        ) -> None:
    plan = plan_for(counted(segments, index_max_entries=entries), CompactAll(), NOW)
    written = packed(segments, entries)
    if plan.is_exact:
        assert plan.bytes_to_copy == written
    assert plan.bytes_to_copy <= written
    assert plan.bytes_freed == len(segments) * (HEADER + ROOM + 500) - plan.bytes_to_copy
    assert plan.bytes_needed >= min(written, 2 * (HEADER + ROOM))


@pytest.mark.parametrize(("segments", "changed", "exact"), [
    pytest.param([[100] * 9], {}, True, id="one output"),
    pytest.param([[100] * 9, [100] * 9], {"index_max_entries": 100}, True, id="records of one size"),
    pytest.param([[290, 290], [290, 280]], {"index_max_entries": 100}, True, id="no room for doubt"),
    pytest.param([[600], [500, 500]], {"index_max_entries": 100}, False, id="two outputs or three"),
    pytest.param([[100] * 9, [100] * 8], {"index_max_entries": 3}, False, id="how many index files"),
    pytest.param([[], []], {}, True, id="drops alone"),
    pytest.param([[100], [100]], {"tied": 50}, False, id="one depends on another victim"),
    pytest.param([[100]], {"tied": 50}, True, id="but not if it is alone"),
    pytest.param([[100]], {"index_max_entries": 0}, False, id="nobody knows the index files"),
])
def test_when_a_plan_is_exact(segments: list[list[int]], changed: dict[str, Any], exact: bool) -> None:
    view = counted(segments, **changed)
    plan = plan_for(view, CompactAll(), NOW)
    assert plan.is_exact == exact
    assert ("about" in repr(plan)) == (not exact)
    if exact:
        assert plan.bytes_to_copy == packed(segments, view.index_max_entries)


def test_a_plan_from_statistics_that_look_ahead_is_an_estimate_with_its_index() -> None:
    view = counted([[100] * 5])
    ahead = attrs.evolve(view, segments=(attrs.evolve(view.segments[0], valid=None), view.segments[1]))
    plan = plan_for(ahead, CompactAll(), NOW + 60)
    assert not plan.is_exact
    assert (plan.reference_time, plan_for(view, CompactAll(), NOW + 60).reference_time) == (
        NOW + 60 - view.retention_seconds, view.reference_time)
    assert plan.bytes_to_copy == HEADER + 500 + 250


def test_a_plan_carries_its_store_and_the_room_there_is() -> None:
    view = counted([[100]], incarnation=b"0123456789abcdef")
    plan = plan_for(view, CompactAll(), NOW, bytes_available=77)
    assert (plan.incarnation, plan.bytes_available) == (view.incarnation, 77)
    assert plan.bytes_to_copy < plan.bytes_needed < plan.bytes_to_copy + 1_500
    assert plan_for(view, CompactAll(), NOW).bytes_available is None


def test_views_choices_plans_and_policies_are_those_of_the_contract() -> None:
    view: contract.View = toy([0, 300])
    policy: contract.Policy[BlobView, BlobChoice] = Greedy()
    plan: contract.Plan = plan_for(toy([0, 300]), policy, NOW)
    assert view.to_dicts()
    assert plan.to_dicts()
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_view_prints_itself() -> None:
    view = toy([1, 2], eligible=[True, False])
    assert repr(view) == "<BlobView: disk1/7: 3 segments, 1 of them eligible, 60.0% of the log used, 3 valid bytes>"
    assert [row["valid_bytes"] for row in view.to_dicts()] == [1, 2, 0]
    assert pickle.loads(pickle.dumps(view)) == view


# ---------------------------------------------------------------------------------------------------- the history

def test_a_history_comes_back_from_its_folder(tmp_path: Path) -> None:
    assert read_last_plans(tmp_path) is None
    history = LastPlans(since=1.5, last_full_at=None, last_middle_range_at=7.25)
    write_last_plans(LocalFiles(), tmp_path, history)
    assert read_last_plans(tmp_path) == history
    write_last_plans(LocalFiles(), tmp_path, attrs.evolve(history, last_full_at=9.0))
    assert read_last_plans(tmp_path) == LastPlans(since=1.5, last_full_at=9.0, last_middle_range_at=7.25)


def test_the_file_is_as_its_page_says(tmp_path: Path) -> None:
    """`docs/formats/blobstore-plan-history.md`: bytes that earlier releases wrote stay readable."""
    golden = b'{"format": 1, "last_full_at": 1700000000.25, "last_middle_range_at": null, "since": 1690000000.0}'
    history = LastPlans(since=1_690_000_000.0, last_full_at=1_700_000_000.25)
    write_last_plans(LocalFiles(), tmp_path, history)
    assert (tmp_path / "plan_history.json").read_bytes() == golden
    (tmp_path / "plan_history.json").write_bytes(golden)
    assert read_last_plans(tmp_path) == history


def test_a_history_outlives_a_crash_at_any_step(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        for number in range(3):
            write_last_plans(files, folder, LastPlans(since=float(number)))
            files.acknowledge(b"%d" % number)  # type: ignore[attr-defined]

    def check(folder: Path, acknowledged: Sequence[bytes]) -> None:
        found = read_last_plans(folder)
        if acknowledged:
            assert found is not None
            assert found.since >= float(acknowledged[-1])

    assert explore_crashes(record(tmp_path, work), check) > 10


def test_the_middle_range_is_remembered_over_a_restart(tmp_path: Path) -> None:
    policy = StatsBased(middle_range_interval_seconds=3600.0)
    view = shares((.3, .2, .1, .1, .3), history=LastPlans(since=0.0))
    plan = plan_for(view, policy, NOW)
    assert plan.kind == "middle range"
    write_last_plans(LocalFiles(), tmp_path, view.history.after(plan.kind, NOW))
    read = read_last_plans(tmp_path)
    assert read is not None
    assert places(plan_for(shares((.3, .2, .1, .1, .3), history=read), policy, NOW + 60)) == [2, 3]


@pytest.mark.parametrize(("text", "expected"), [
    ("{}", LastPlans(since=0.0)),
    ('{"since": 3, "colour": "blue"}', LastPlans(since=3.0)),
    ('{"last_full_at": 5.0}', LastPlans(since=5.0, last_full_at=5.0)),
    ('{"since": 1, "last_full_at": null}', LastPlans(since=1.0)),
])
def test_fields_may_be_missing_or_unknown(text: str, expected: LastPlans, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert read_last_plans(tmp_path) == expected


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"since": "now"}', '{"since": true}', '{"since": NaN}',
                                  "[" * 100_000, '{"last_full_at": []}'])
def test_a_damaged_history_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(CorruptData, match=FILE_NAME):
        read_last_plans(tmp_path)


def test_a_history_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """An error of the operating system came instead, from `view()` and `plan()` too."""
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(StorageError, match=FILE_NAME):
        read_last_plans(tmp_path)


def test_a_later_format_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({"format": 2}))
    with pytest.raises(Unsupported, match="format 2"):
        read_last_plans(tmp_path)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_history_or_named_damage(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_bytes(content)
        try:
            read_last_plans(folder)
        except (CorruptData, Unsupported) as error:
            assert FILE_NAME in str(error)


