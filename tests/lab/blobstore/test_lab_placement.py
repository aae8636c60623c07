# SPDX-License-Identifier: Apache-2.0
"""Placements: cases with known answers for each scheme, and what holds of a log whatever the scheme."""

from __future__ import annotations

from array import array
from typing import Any

import attrs
import pytest

from benchmarks.fixed_number import FixedNumber
from compactlib.blobstore import BlobChoice, BlobPolicy, CostBenefit, Greedy
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.view import CopyOrder, in_copy_order
from compactlib.errors import InvalidInput
from compactlib.lab import BlobSettings, HotCold, Operations, TtlMix, Uniform, Zipf, replay_blobs
from compactlib.lab.blobstore.placement.by_lifetime import ByLifetime
from compactlib.lab.blobstore.placement.fadac import FADaC
from compactlib.lab.blobstore.placement.mixed import Mixed
from compactlib.lab.blobstore.placement.placement import Contents, Placement, Placer, Victim
from compactlib.lab.blobstore.placement.user_and_survivors import UserAndSurvivors
from compactlib.lab.blobstore.policies.declining_cost import DecliningCost
from compactlib.lab.blobstore.replay import BlobReplay
from compactlib.lab.blobstore.survivors import ByEnd
from compactlib.lab.traces.operations import FOREVER, PUT
from compactlib.lab.traces.workloads import Bursts, Expiring, Workload
from tests.harness.effort import Effort

SCHEMES: list[Placement] = [Mixed(), UserAndSurvivors(), FADaC(), ByLifetime()]
ALL = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)


def settings(scheme: Placement | None, *, dead: float = 0.2, segments: int = 200, **more: Any) -> BlobSettings:
    return BlobSettings.of_slots(segments, 16, max_dead_fraction=dead, placement=scheme, copies_renew=True, **more)


def fed(workload: Workload, scheme: Placement | None, **more: Any) -> BlobReplay:
    replay = BlobReplay(FixedNumber(victims=4, min_dead_fraction=0.2, prefers="root benefit"), settings(scheme, **more))
    for piece in workload.pieces(3):
        replay.feed(piece)
        replay.log.audit()
    return replay


@attrs.frozen
class Watching:
    """Two classes, and of each closed segment how many records are valid and the sum of a number of their keys."""

    name: str = "watching"
    classes: int = 2

    def placer(self) -> Placer:
        return SumsOfSegments()


class SumsOfSegments(Placer):
    def __init__(self) -> None:
        self.numbers = array("q")
        self.held: dict[int, list[int]] = {}
        self.left_closed = self.copied = 0

    def know_keys(self, keys: int) -> None:
        self.numbers.extend(1 << key % 40 for key in range(len(self.numbers), keys))

    def write(self, key: int, now_ms: int) -> int:
        return key % 2

    def copy(self, key: int, now_ms: int) -> int:
        return key % 2

    def closed(self, row: int, placed: int) -> None:
        self.held[row], = self.sums_of([row], [self.numbers])

    def left(self, key: int, row: int, placed: int) -> None:
        if row in self.held:
            self.left_closed += 1
            self.held[row][0] -= 1
            self.held[row][1] -= self.numbers[key]

    def taken(self, victim: Victim) -> None:
        assert self.sums_of(list(self.held), [self.numbers]) == list(self.held.values())
        self.copied += self.held[victim.row][0]
        assert self.held.pop(victim.row)[0] == victim.valid


@pytest.mark.parametrize("workload", [
    Zipf(keys=500, writes=2_500), TtlMix(keys=500, writes=2_000, lives_seconds=((0.3, 1.0), (0.3, 0.2)))],
    ids=lambda workload: workload.name)
def test_a_placer_can_follow_what_each_segment_holds_until_it_is_taken(workload: Workload) -> None:
    replay = fed(workload, Watching())
    placer = replay.log.placer
    assert isinstance(placer, SumsOfSegments)
    assert min(placer.left_closed, placer.copied) > 100


@ALL
@pytest.mark.parametrize("workload", [
    Zipf(keys=500, writes=2_500), TtlMix(keys=500, writes=2_000, lives_seconds=((0.3, 1.0), (0.3, 0.2))),
    Bursts(keys=500, writes=2_000, every=400, burst_keys=100),
    Uniform(keys=300, writes=2_000, record_bytes=3, spread=0.6),
], ids=lambda workload: workload.name)
def test_a_placed_log_holds_what_it_was_given(scheme: Placement, workload: Workload) -> None:
    replay, plain = fed(workload, scheme), fed(workload, None, dead=1.0)
    assert replay.log.live_bytes == plain.log.live_bytes
    total = replay.report("").total
    assert total.refused == 0
    assert total.compactions > 10
    assert total.user_bytes == plain.report("").total.user_bytes
    assert not replay.log.has_dead_beyond(0.3)


@attrs.frozen
class Elsewhere:
    """Two classes, and what it answers instead."""

    write: Any
    copy: Any
    name: str = "elsewhere"
    classes: int = 2

    def placer(self) -> Placer:
        return Answers(self.write, self.copy)


class Answers(Placer):
    def __init__(self, written: Any, copied: Any) -> None:
        self.answers = written, copied

    def write(self, key: int, now_ms: int) -> Any:
        return self.answers[0]

    def copy(self, key: int, now_ms: int) -> Any:
        return self.answers[1]


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize(("written", "copied", "odd"), [
    (2, 0, 2), (-1, 0, -1), (-2, 0, -2), (0, 2, 2), (0, -1, -1)])
def test_a_class_that_cannot_be_is_named(written: Any, copied: Any, odd: Any, spread: float) -> None:
    workload = Uniform(keys=500, writes=3_000, spread=spread, record_bytes=2)
    laid_out = BlobSettings.of_slots(60, 16, 2, placement=Elsewhere(written, copied))
    with pytest.raises(InvalidInput, match=rf"Elsewhere.* gave class {odd}; a class is a whole number from 0 to 1"):
        replay_blobs(workload, Greedy(min_used_fraction=0), laid_out)


@ALL
def test_equal_arguments_give_equal_reports(scheme: Placement) -> None:
    workload = Zipf(keys=400, writes=1_500)
    policy = FixedNumber(victims=4, min_dead_fraction=0.2)
    first = replay_blobs(workload, policy, settings(scheme), seed=9)
    assert replay_blobs(workload, policy, settings(scheme), seed=9) == first


@ALL
def test_a_placed_log_of_a_fixed_size_stays_within_it(scheme: Placement) -> None:
    """Four fifths full, and classes take a segment each: no write is refused, and no plan outgrows the log."""
    replay = BlobReplay(CostBenefit(min_used_fraction=0, min_reclaimed_segments=2),
                        BlobSettings.of_slots(100, 8, placement=scheme))
    for piece in HotCold(keys=600, writes=3_000).pieces(1):
        replay.feed(piece)
        replay.log.audit()
    total = replay.report("").total
    assert (total.refused, total.live_bytes) == (0, 600)


def test_survivors_that_stay_open_leave_no_segment_half_empty() -> None:
    """Each plan of the sealed log closes an output that is part-filled; an open one is filled by the next plan."""
    policy = Greedy(min_used_fraction=0)
    workload = Uniform(keys=2_400, writes=9_000)
    closed = replay_blobs(workload, policy, BlobSettings.of_slots(200, 16), seed=2).steady()
    kept = replay_blobs(workload, policy, BlobSettings.of_slots(200, 16, placement=UserAndSurvivors()), seed=2).steady()
    assert kept.write_amplification < 0.97 * closed.write_amplification


def test_survivors_closed_with_each_compaction_are_laid_out_as_without_a_placement() -> None:
    """The segments have other names, and nothing else differs."""
    policy = FixedNumber(victims=3, min_dead_fraction=0.2, prefers="valid bytes")
    workload = Uniform(keys=600, writes=2_500)
    plain, brief = (replay_blobs(workload, policy, attrs.evolve(settings(each), copies_renew=False),
                                 seed=4).total for each in (None, UserAndSurvivors(keep_open=False)))
    assert brief.write_amplification == pytest.approx(plain.write_amplification, rel=0.05)
    assert brief.filled == pytest.approx(plain.filled, rel=0.02)
    assert brief.filled < 0.97


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme.classes > 2], ids=lambda scheme: scheme.name)
def test_on_a_skewed_load_each_scheme_copies_less_than_mixing(scheme: Placement) -> None:
    policy = FixedNumber(victims=4, min_dead_fraction=0.2, prefers="root benefit")
    workload = Zipf(keys=2_000, writes=16_000, exponent=1.0)

    def copies(each: Placement) -> float:
        return replay_blobs(workload, policy, settings(each), seed=5).total.write_amplification - 1

    assert copies(scheme) < 0.93 * copies(Mixed())


def test_victims_are_copied_in_the_order_that_was_asked_for() -> None:
    """Three victims that keep two records each: which four of the six share the first output follows from the order."""
    def shared(order: CopyOrder) -> set[int]:
        replay = BlobReplay(Greedy(), BlobSettings.of_slots(20, 4))
        keys = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 4, 5, 8, 9]
        replay.feed(Operations(kinds=bytes(len(keys)), keys=keys, sizes=1, times_ms=range(len(keys))))
        log = replay.log
        view = log.view(100)
        first, second, third = view.segments[:3]
        log.compact(BlobChoice(in_copy_order((third, first, second), order), why="as they are named"), 100)
        log.audit()
        place, current = log.place, log.current
        rows = [{key for key in (2, 3, 6, 7, 10, 11) if place[current[key]] is segment} for segment in set(place)]
        return max(rows, key=len)

    assert shared("log") == {2, 3, 6, 7}
    assert shared("choice") == {10, 11, 2, 3}
    assert shared("age") == {2, 3, 6, 7}


def test_in_its_own_order_cost_benefit_copies_less_under_uniform_writes() -> None:
    policy = CostBenefit(min_used_fraction=0, min_reclaimed_segments=4)
    workload = Uniform(keys=5_000, writes=20_000)

    def copies(order: CopyOrder) -> float:
        ordered = attrs.evolve(policy, copy_order=order)
        return replay_blobs(workload, ordered, BlobSettings.of_slots(400, 16), seed=3).steady().write_amplification - 1

    assert copies("choice") < 0.95 * copies("log")


def began(scheme: Placement, valid: int = 100) -> Placer:
    placer = scheme.placer()
    placer.contents = Contents(bytes=valid, records=valid)
    placer.segment_records = 4
    placer.know_keys(400)
    return placer


def write(placer: Placer, key: int, at: int = 0) -> int:
    placer.writes += 1
    return placer.write(key, at)


def test_fadac_counts_against_an_average_that_nears_one() -> None:
    placer = began(FADaC(), valid=10)
    assert write(placer, 7) == 1            # 1 is above the average, 0.1, and not above ten times that
    for key in range(100, 300):
        write(placer, key)
    assert write(placer, 300) == 1          # the average is a little below 1
    assert write(placer, 7) == 1            # 2
    for _ in range(9):
        found = write(placer, 7)
    assert found == 2                       # 11
    assert [placer.copy(7, 0) for _ in range(11)][-1] == 0


def test_a_scheme_is_told_of_retention_and_sums_leave_out_what_it_keeps() -> None:
    pieces = list(Zipf(keys=500, writes=700).pieces(1))
    replay = BlobReplay(Greedy(min_used_fraction=0), settings(Watching(), dead=1.0, deleted_retention_seconds=10.0))
    for piece in pieces:
        replay.feed(piece)
    log = replay.log
    placer = log.placer
    assert placer is not None
    assert placer.keeps_replaced
    assert log.valid_bytes == 1_200
    rows, ones = range(len(log.names)), array("q", (1,)) * 500
    keys = len({key for piece in pieces for key in piece.keys})
    for found in (placer.sums_of(rows, [ones]), [placer.sums_of([row], [ones])[0] for row in rows]):
        assert [sum(each) for each in zip(*found, strict=True)] == [keys, keys]


def test_by_lifetime_tells_records_apart_by_their_end_or_by_how_often_their_key_is_written() -> None:
    placer = began(ByLifetime(rates=6, ends=4), valid=100)
    for time in range(0, 1_600, 16):
        write(placer, 1, at=time)                       # a write every 16 ms, and no other key
    assert write(placer, 2, at=1_600) == 4              # nothing is known: one life a turn, which is 1,600 ms
    assert write(placer, 2, at=2_400) == 3
    assert write(placer, 1, at=2_401) == 0              # 16 ms are less than an eighth of a turn
    assert placer.copy(2, 20_000) == 5                  # it has lived on for long
    placer.until_ms = 20_100
    assert placer.copy(2, 20_000) == 6                  # the first class of ends
    placer.until_ms = 21_000
    assert placer.copy(2, 20_000) == 8                  # two fifths of a turn
    placer.until_ms = 4_450
    assert placer.copy(1, 2_450) == 0                   # it will be replaced long before


@pytest.mark.parametrize(("share", "by_container", "part"), [
    (0.0, True, 1.0), (0.2, True, 0.95), (0.8, False, 0.75)])
def test_ends_that_are_known_are_worth_more_than_any_count_of_writes(share: float, by_container: bool, part: float,
                                                                    effort: Effort) -> None:
    """FADaC and the root of the age are what comes closest; without times to live, nothing is lost."""
    keys = effort(6_000, 40_000)
    workload = Expiring(keys=keys, writes=5 * keys, share=share, by_container=by_container,
                        longest_seconds=keys / 1_000)

    def copies(policy: BlobPolicy, placement: Placement, **more: Any) -> float:
        chosen = BlobSettings.for_workload(workload, segments=keys // 20, seed=1, placement=placement,
                                           copies_renew=True, min_free_segments=2, **more)
        found = replay_blobs(workload, policy, chosen, seed=1).steady(0.4)
        assert found.refused == 0
        return found.write_amplification - 1

    trigger: dict[str, Any] = {"min_used_fraction": 0.0, "min_reclaimed_segments": 4}
    ours = copies(DecliningCost(**trigger, decline=None), ByLifetime(), forecast_seconds=32.0, bucket_seconds=0.25)
    assert ours < part * copies(FixedNumber(victims=8, prefers="root benefit"), FADaC())


@pytest.mark.parametrize("make", [
    lambda: FADaC(classes=1), lambda: FADaC(classes=65), lambda: FADaC(step=1.0), lambda: FADaC(request_records=0),
    lambda: BlobSettings.of_slots(6, 16, placement=FADaC()), lambda: settings(None, dead=1.5),
    lambda: BlobSettings.of_slots(60, 16, placement=FADaC(), tombstone_bytes=5),
    lambda: ByLifetime(rates=1), lambda: ByLifetime(ends=0), lambda: ByLifetime(sooner=0.0),
    lambda: Greedy(copy_order="luck"),  # type: ignore[arg-type]
    lambda: FixedNumber(prefers="luck"),  # type: ignore[arg-type]
])
def test_settings_that_cannot_be_are_refused(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_a_segment_that_is_open_may_not_be_taken() -> None:
    replay = BlobReplay(Greedy(), settings(UserAndSurvivors()))
    replay.feed(Operations(kinds=bytes([PUT]), keys=[1], sizes=1, lives_ms=FOREVER, times_ms=[0]))
    with pytest.raises(PlanDoesNotFit, match="may not be compacted"):
        replay.log.compact(BlobChoice(replay.log.names, why="all"), 0)


def test_what_is_dead_enough_is_taken_in_the_order_that_was_asked_for() -> None:
    replay = BlobReplay(Greedy(), settings(None, dead=1.0))
    keys = [*range(64), *range(16), *range(20, 24), *range(40, 42)]
    replay.feed(Operations(kinds=bytes(len(keys)), keys=keys, sizes=1, times_ms=range(len(keys))))
    view = replay.log.view(1_000)

    def chosen(**asked: Any) -> list[int]:
        return [name.position for name in FixedNumber(**asked).choose(view, 1.0).victims]

    assert chosen(victims=3) == [0, 1, 2]
    assert chosen(victims=2, min_dead_fraction=0.25, prefers="valid bytes") == [0, 1]
    assert chosen(victims=1, prefers="benefit") == [0]
    assert chosen(victims=1, prefers="root benefit") == [0]
    assert chosen(victims=5, ties_modulo=4) == [0, 1, 2, 4, 3]
    assert FixedNumber(min_dead_fraction=0.9).choose(replay.log.view(1_000), 1.0).victims[0].position == 0
    assert "lower it, or wait" in FixedNumber(min_dead_fraction=0.9).choose(
        BlobReplay(Greedy(), settings(None)).log.view(0), 1.0).why


@pytest.mark.parametrize("given", [{"placement": FADaC}, {"survivors": ByEnd}])
def test_a_placement_is_an_object_and_not_its_class(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"is the class (FADaC|ByEnd); give one that is made of it"):
        BlobSettings.of_slots(200, 100, **given)
