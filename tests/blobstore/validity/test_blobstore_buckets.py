# SPDX-License-Identifier: Apache-2.0
"""Bucket statistics: equal to a full count at each bucket's beginning, whatever is written and however time moves."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from compactlib.blobstore.compaction.plan.policy import Dying
from compactlib.blobstore.compaction.sense.buckets import BucketStatistics
from compactlib.blobstore.compaction.sense.kept_statistics import KeptStatistics
from compactlib.blobstore.compaction.sense.statistics import all_lifetimes, log_statistics
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.validity.lifetimes import Lifetime
from compactlib.blobstore.validity.verdicts import FOREVER, PurgeRules
from compactlib.errors import InvalidInput, Stale
from compactlib.testing.interrupts import Interrupted
from tests.blobstore.blob_logs import LogOf, Writing
from tests.tools.record_logs import record_logs

S0, S1 = SegmentName(0, 0), SegmentName(1, 0)


def buckets(**changed: Any) -> BucketStatistics:
    return BucketStatistics(**{"start": 0.0, "bucket_seconds": 10.0, "bucket_count": 6, "retention_seconds": 5.0,
                               **changed})


def put(size: int, *, deleted_ms: int = FOREVER, expires_ms: int = FOREVER, segment: SegmentName = S0) -> Lifetime:
    return Lifetime(segment, size, deleted_ms, expires_ms)


def test_a_record_counts_until_the_bucket_after_the_one_it_dies_in() -> None:
    kept = buckets()
    kept.add([put(7, expires_ms=19_999), put(11, expires_ms=20_000), put(100)])
    assert [kept.statistics(now).valid_bytes[S0] for now in (0, 19.9, 20.0, 29.9, 30.0)] == [118, 118, 111, 111, 100]


def test_a_delete_counts_the_retention_later() -> None:
    kept = buckets()
    kept.add([put(7, deleted_ms=14_999), put(11, deleted_ms=15_000)])
    assert [kept.statistics(now).valid_bytes[S0] for now in (19.9, 20.0, 30.0)] == [18, 11, 0]


def test_the_answer_says_for_which_time_it_holds() -> None:
    found = buckets().statistics(34.0)
    assert (found.now, found.reference_time) == (30.0, 25.0)


def test_what_was_dead_at_the_start_never_counts_and_can_be_taken_back() -> None:
    kept = buckets(start=25.0)
    kept.add([put(7, expires_ms=19_000), put(11, expires_ms=24_000)])
    assert kept.statistics(26.0).valid_bytes[S0] == 11
    kept.remove([put(7, expires_ms=19_000), put(11, expires_ms=24_000)])
    assert kept.statistics(26.0).valid_bytes[S0] == 0
    kept.audit()


def test_what_died_meanwhile_can_be_taken_back_without_harm() -> None:
    kept = buckets()
    kept.add([put(7, expires_ms=12_000)])
    assert kept.statistics(30.0).valid_bytes[S0] == 0
    kept.remove([put(7, expires_ms=12_000)])
    assert kept.statistics(30.0).valid_bytes[S0] == 0


def test_a_clock_that_was_set_back_changes_nothing() -> None:
    kept = buckets()
    kept.add([put(7, expires_ms=12_000)])
    kept.advance(40.0)
    found = kept.statistics(5.0)
    assert (found.now, found.valid_bytes[S0]) == (40.0, 0)


def test_behind_its_last_bucket_it_has_to_be_built_anew() -> None:
    kept = buckets()
    kept.add([put(7, expires_ms=61_000)])
    assert kept.statistics(59.9).valid_bytes[S0] == 7
    with pytest.raises(Stale, match=r"look ahead until 60\.000, and it is 60\.000"):
        kept.statistics(60.0)


def test_what_is_dying_is_told_at_the_end_of_each_bucket() -> None:
    kept = buckets()
    kept.add([put(7, expires_ms=12_000), put(11, expires_ms=19_999), put(5, expires_ms=25_000, segment=S1), put(3)])
    assert kept.dying(60.0) == {S0: (Dying(19.999, 18),), S1: (Dying(29.999, 5),)}
    assert kept.dying(15.0) == {S0: (Dying(19.999, 18),)}


def test_segments_are_listed_without_valid_bytes_too_and_in_log_order() -> None:
    kept = buckets()
    kept.add_segment(SegmentName(10, 0))
    kept.add([put(7, segment=SegmentName(2, 0))])
    kept.add_segment(S0)
    assert list(kept.statistics(0.0).valid_bytes.items()) == [(S0, 0), (SegmentName(2, 0), 7), (SegmentName(10, 0), 0)]
    assert kept.to_dicts()[1] == {"segment": "2_0", "valid_bytes": 7, "dying_bytes": 0}
    assert repr(kept) == "BucketStatistics(3 segments, 0 buckets, from 0.000 to 60.000)"


@pytest.mark.parametrize("wrong", [{"bucket_seconds": 0.0}, {"bucket_seconds": -1.0}, {"bucket_count": 0},
                                   {"retention_seconds": -1.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="buckets of"):
        buckets(**wrong)


# ---------------------------------------------------------------------------------------------------------- oracles

@given(record_logs(), st.integers(0, 40), st.integers(1, 60), st.lists(st.integers(0, 300), max_size=5),
       st.booleans())
def test_at_each_buckets_beginning_they_equal_a_full_count(segments: tuple[tuple[IndexEntry, ...], ...],
                                                           retention_ms: int, span_ms: int, times: list[int],
                                                           purge: bool) -> None:
    log, rules = LogOf(segments), PurgeRules(purge_tombstones=purge)
    kept = BucketStatistics(0.0, bucket_seconds=span_ms / 1000, bucket_count=400, retention_seconds=retention_ms / 1000)
    for info in log.segments:
        kept.add_segment(info.name)
    kept.add(all_lifetimes(log, rules))
    for now_ms in sorted(times):
        found = kept.statistics(now_ms / 1000)
        assert found == attrs.evolve(log_statistics(log, found.reference_time, found.now, rules), valid={})
        assert now_ms / 1000 - span_ms / 1000 < found.now <= now_ms / 1000
        kept.audit()


@given(record_logs(forgetful=False), st.integers(0, 300))
def test_the_forecast_is_what_a_later_count_finds(segments: tuple[tuple[IndexEntry, ...], ...], later_ms: int) -> None:
    log = LogOf(segments)
    kept = BucketStatistics(0.0, bucket_seconds=0.001, bucket_count=1_000, retention_seconds=0.0)
    kept.add(all_lifetimes(log))
    now = kept.statistics(0.0).valid_bytes
    dying = kept.dying(kept.ends_at)
    later = log_statistics(log, later_ms / 1000, later_ms / 1000).valid_bytes
    for name, valid in now.items():
        dead = sum(each.bytes for each in dying.get(name, ()) if each.at < later_ms / 1000)
        assert valid - dead == later[name]


class KeptWhileWriting(RuleBasedStateMachine):
    """Statistics that are kept, beside a full count after each step; the log grows, is compacted, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.written: Writing = Writing()
        self.kept = KeptStatistics(retention_seconds=0.05, bucket_seconds=0.02, bucket_count=20)
        self.names: list[str] = []

    @initialize(blobs=st.integers(0, 12))
    def begin(self, blobs: int) -> None:
        for _ in range(blobs):
            self.put(-1)

    @rule(life=st.sampled_from([-1, 0, 10, 100, 1_000]))
    def put(self, life: int) -> None:
        name = f"blob {len(self.names)}"
        self.names.append(name)
        self.written.put(name, self.now_ms, expires=-1 if life < 0 else self.now_ms + life)

    @rule(which=st.integers(0, 200), how=st.sampled_from(["delete", "undelete", "ttl_update"]))
    def change(self, which: int, how: str) -> None:
        if self.names:
            getattr(self.written, how)(self.names[which % len(self.names)], self.now_ms)

    @rule()
    def roll(self) -> None:
        if self.written.segments[-1]:
            self.written.roll()

    @rule(wait=st.sampled_from([1, 19, 20, 60, 500]))
    def wait(self, wait: int) -> None:
        self.now_ms += wait

    @rule(data=st.data())
    def compact_one(self, data: st.DataObject) -> None:
        if len(self.written.segments) > 1:
            place = data.draw(st.integers(0, len(self.written.segments) - 2))
            kept = self.written.segments[place][::2]
            self.written.segments[place] = [
                entry._replace(segment=entry.segment._replace(generation=entry.segment.generation + 1))
                for entry in kept]

    @invariant()
    def equal_to_a_full_count(self) -> None:
        log = self.written.log()
        found = self.kept.refresh(log, self.now_ms / 1000).statistics(self.now_ms / 1000)
        assert found == attrs.evolve(log_statistics(log, found.reference_time, found.now), valid={})
        self.kept.audit()


TestKeptWhileWriting = KeptWhileWriting.TestCase
TestKeptWhileWriting.settings = settings(max_examples=40)


def many_puts() -> Writing:
    log = Writing()
    for number in range(500):
        log.put(f"blob {number}")
    return log


def test_a_look_costs_what_was_appended() -> None:
    log = many_puts()
    kept = KeptStatistics(retention_seconds=0.0)
    kept.refresh(log.log(), 1.0)
    again = LogOf(log.segments, index_entries=100)
    kept.refresh(again, 2.0)
    assert (kept.full_counts, again.probes) == (1, 0)
    log.delete("blob 7", at=3)
    grown = LogOf(log.segments, index_entries=100)
    assert sum(kept.refresh(grown, 3600.0 * 2).statistics(3600.0 * 2).valid_bytes.values()) == 499 * 53 + 29
    assert (kept.full_counts, grown.probes) == (1, 1)


def counted(kept: KeptStatistics, segments: Sequence[Sequence[IndexEntry]], now: float) -> int:
    return sum(kept.refresh(LogOf(segments, index_entries=100), now).statistics(now).valid_bytes.values())


def test_everything_is_counted_anew_after_a_compaction_and_behind_the_last_bucket() -> None:
    log = many_puts()
    kept = KeptStatistics(retention_seconds=0.0, bucket_seconds=1.0, bucket_count=10)
    assert counted(kept, log.segments, 1.0) == 500 * 53
    log.roll()
    assert counted(kept, log.segments, 2.0) == 500 * 53
    assert kept.full_counts == 1
    compacted = [[entry._replace(segment=SegmentName(0, 1)) for entry in log.segments[0][:100]], []]
    assert counted(kept, compacted, 3.0) == 100 * 53
    assert kept.full_counts == 2
    assert counted(kept, compacted, 30.0) == 100 * 53
    assert kept.full_counts == 3
    for number in range(400):
        log.delete(f"blob {number}", at=3)
    assert counted(kept, log.segments, 31.0) == 100 * 53 + 400 * 29
    assert kept.full_counts == 4


def test_a_segment_that_is_gone_without_a_successor_is_not_listed_any_more() -> None:
    log = many_puts()
    log.roll()
    log.put("last")
    kept = KeptStatistics(retention_seconds=0.0)
    assert counted(kept, log.segments, 1.0) == 501 * 53
    assert counted(kept, log.segments[1:], 2.0) == 53
    kept.audit()


def test_a_look_that_is_interrupted_anywhere_counts_nothing_twice_and_forgets_nothing() -> None:
    log = Writing()
    for number in range(4):
        log.put(f"blob {number}", 0, expires=500 * (1 + number))

    def looked(interrupted: Interrupted) -> int:
        kept = KeptStatistics(retention_seconds=0.0, bucket_seconds=1.0, bucket_count=10)
        counted(kept, log.segments, 0.0)
        with contextlib.suppress(KeyboardInterrupt), interrupted:
            counted(kept, log.segments, 1.5)
        kept.audit()
        return counted(kept, log.segments, 1.5)

    whole = Interrupted()
    expected = looked(whole)
    assert expected < counted(KeptStatistics(retention_seconds=0.0), log.segments, 0.0)
    for place in range(1, whole.places + 1):
        interrupted = Interrupted(place)
        assert looked(interrupted) == expected, interrupted.where
