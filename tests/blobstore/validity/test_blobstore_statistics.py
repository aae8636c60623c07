# SPDX-License-Identifier: Apache-2.0
"""Statistics: cases with known answers, and oracles: the compaction's own rules, record by record."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore.compaction.sense import statistics as statistics_module
from compactlib.blobstore.compaction.sense.statistics import log_statistics
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.validity.lifetimes import lifetimes
from compactlib.blobstore.validity.verdicts import FOREVER, PurgeRules, Rules, Verdict, judge
from compactlib.budget import Budget, BudgetLimits
from compactlib.clock import ManualClock
from tests.blobstore.blob_logs import LogOf, Writing
from tests.tools.record_logs import record_logs

LATER = 1_000_000
RETENTION = 10_000


def valid(log: LogOf, reference_ms: int, now_ms: int, rules: PurgeRules | None = None) -> list[int]:
    found = log_statistics(log, reference_ms / 1000, now_ms / 1000, rules)
    return list(found.valid_bytes.values())


# ------------------------------------------------------------------------------------------------- known answers

def test_puts_count_until_they_have_expired() -> None:
    log = Writing()
    for number in range(3):
        log.put(f"blob {number}")
    assert valid(log.log(), 0, 0) == [159]
    for number in range(3, 6):
        log.put(f"blob {number}", expires=100)
    log.put("blob 6")
    assert valid(log.log(), 0, 100) == [159 + 212]
    assert valid(log.log(), 0, 101) == [159 + 53]


def test_two_deletes_add_their_own_bytes_and_take_the_blobs_when_in_effect() -> None:
    log = Writing()
    for blob in "abc":
        log.put(blob)
    before = valid(log.log(), 0, 0)[0]
    log.delete("a", at=1000)
    log.delete("b", at=1000)
    assert valid(log.log(), 1000, 2000) == [before + 58]
    assert valid(log.log(), 1001, 2000) == [before - 48]


def test_undeletes_bring_the_blobs_back() -> None:
    log = Writing()
    log.put("a")
    log.put("b")
    log.ttl_update("b", at=5)
    log.delete("a", at=10)
    log.delete("b", at=10)
    before = valid(log.log(), LATER, LATER)[0]
    log.undelete("a", at=20)
    log.undelete("b", at=20)
    assert valid(log.log(), LATER, LATER) == [before + 143]
    log.delete("a", at=LATER)
    assert valid(log.log(), LATER, LATER) == [before + 143]


def test_segments_without_valid_bytes_are_listed_as_well() -> None:
    log = Writing()
    log.put("a", expires=5)
    log.roll()
    log.roll()
    log.put("b")
    found = log_statistics(log.log(), 0, 1)
    assert found.valid_bytes == {SegmentName(0, 0): 0, SegmentName(1, 0): 0, SegmentName(2, 0): 53}
    assert [row["segment"] for row in found.to_dicts()] == ["0_0", "1_0", "2_0"]
    assert "53 valid bytes in 3 segments" in str(found)
    assert found._repr_html_().startswith("<table>")


def test_a_ttl_update_of_a_deleted_blob_counts_only_while_its_put_is_in_another_segment() -> None:
    """As a compaction of the one segment would decide."""
    for other in (True, False):
        log = Writing()
        log.put("a")
        if other:
            log.roll()
        log.ttl_update("a", at=1)
        log.delete("a", at=2)
        assert valid(log.log(), LATER, LATER)[-1] == (37 + 29 if other else 29)


def test_an_orphaned_ttl_update_does_not_count() -> None:
    log = Writing()
    log.put("a")
    log.roll()
    log.ttl_update("a", at=1)
    assert valid(LogOf([[], log.segments[1]]), 0, 1) == [0, 0]


def test_a_tombstone_without_its_put_goes_when_it_is_purged_and_expired() -> None:
    log = Writing()
    log.put("a", expires=50)
    log.roll()
    log.delete("a", at=1)
    gone = LogOf([[], log.segments[1]])
    purge = PurgeRules(purge_tombstones=True)
    assert valid(gone, LATER, 50, purge) == [0, 29]
    assert valid(gone, LATER, 51, purge) == [0, 0]
    assert valid(gone, LATER, 51) == [0, 29]
    assert valid(gone, LATER, 0, PurgeRules(purge_tombstones=True, seen_by_all_peers=lambda entry: True)) == [0, 0]
    assert valid(log.log(), LATER, 51, purge) == [0, 29]


# ------------------------------------------------------------------------------------------------------ the oracle

def by_the_compactions_rules(segments: Sequence[Sequence[IndexEntry]], reference_ms: int, now_ms: int,
                             purge: PurgeRules) -> list[int]:
    """Each segment compacted alone, each record asked for by itself."""
    entries = [entry for segment in segments for entry in segment]
    rules = Rules(reference_ms=reference_ms, now_ms=now_ms, purge=purge)
    sums = []
    for segment in segments:
        kept = 0
        for entry in segment:
            history = [other for other in entries if other.id == entry.id]
            verdict = judge(history, rules, {entry.segment: 0})[history.index(entry)]
            kept += entry.size if verdict is Verdict.KEEP else 0
        sums.append(kept)
    return sums


purge_rules = st.builds(
    PurgeRules, purge_tombstones=st.booleans(),
    seen_by_all_peers=st.sampled_from([lambda entry: False, lambda entry: entry.sequence < 8]))
times = st.integers(0, 250)


@given(record_logs(), times, times, purge_rules, st.integers(1, 4))
def test_statistics_are_what_the_compactions_rules_keep(segments: tuple[tuple[IndexEntry, ...], ...], reference_ms: int,
                                                        now_ms: int, purge: PurgeRules, index_entries: int) -> None:
    log = LogOf(segments, index_entries=index_entries)
    assert valid(log, reference_ms, now_ms, purge) == by_the_compactions_rules(segments, reference_ms, now_ms, purge)
    assert log.probes == 0


@given(record_logs(), times, times, purge_rules, st.lists(st.integers(0, 3), unique=True))
def test_what_is_not_tied_to_another_segment_is_kept_as_well_if_both_are_compacted(
        segments: tuple[tuple[IndexEntry, ...], ...], reference_ms: int, now_ms: int, purge: PurgeRules,
        chosen: list[int]) -> None:
    """What the forecast of a plan over several segments rests on."""
    log = LogOf(segments)
    counted = log_statistics(log, reference_ms / 1000, now_ms / 1000, purge).valid
    together = [name for place in chosen for name in counted if name.position == place]
    rules = Rules(reference_ms=reference_ms, now_ms=now_ms, purge=purge)
    for name in counted:
        for compacting in ([name], together if name in together else [name]):
            turns = {each: turn for turn, each in enumerate(compacting)}
            kept = []
            for entry in log.entries_of(name):
                history = log.history(entry.id)
                if judge(history, rules, turns)[history.index(entry)] is Verdict.KEEP:
                    kept.append(entry)
            one = counted[name]
            if len(compacting) == 1 or not any(counted[each].tied_bytes for each in together):
                assert (one.records, one.id_bytes) == (len(kept), sum(len(entry.id) for entry in kept))
                sizes = [entry.size for entry in kept]
                assert (one.smallest, one.largest) == (min(sizes, default=0), max(sizes, default=0))
            else:
                assert one.records >= len(kept)


@given(record_logs(max_records=12, blobs=2), st.integers(0, 11))
def test_a_copy_of_a_record_counts_once(segments: tuple[tuple[IndexEntry, ...], ...], which: int) -> None:
    """As between two cycles of a compaction: the copy in the first segment counts."""
    entries = [entry for segment in segments for entry in segment]
    if which >= len(entries):
        return
    copied = entries[which]._replace(segment=SegmentName(len(segments), 0), offset=64)
    assert valid(LogOf([*segments, [copied]]), 0, 0)[-1] == 0


@given(record_logs())
def test_what_is_never_kept_has_no_lifetime(segments: tuple[tuple[IndexEntry, ...], ...]) -> None:
    log = LogOf(segments)
    for blob_id in {entry.id for entry in log.all()}:
        for life in lifetimes(log.history(blob_id), PurgeRules()):
            assert life.is_kept(0, 0)
            assert life.is_kept(life.reference_until, life.now_until)
            assert life.reference_until == FOREVER or not life.is_kept(life.reference_until + 1, 0)
            assert life.now_until == FOREVER or not life.is_kept(0, life.now_until + 1)


def test_a_large_index_is_merged_in_slices_and_as_fast_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_module, "SLICE_ENTRIES", 10)
    log = Writing()
    for number in range(300):
        if number % 100 == 0:
            log.roll()
        log.put(f"blob {number}")
    for number in range(0, 300, 2):
        log.delete(f"blob {number}", at=number)
    clock = ManualClock()
    throttle = Budget.from_limits(BudgetLimits(bytes_per_second=100), clock=clock)
    found = log_statistics(log.log(), LATER / 1000, LATER / 1000, throttle=throttle)
    assert list(found.valid_bytes.values()) == [0, 50 * 53, 50 * 53, 50 * 53 + 150 * 29]
    assert 4.4 < clock.monotonic() <= 4.51
