# SPDX-License-Identifier: Apache-2.0
"""Steps by NumPy and by plain loops are the same steps: the same log after each piece, the same report."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest import mock

import attrs
import pytest
from hypothesis import given, settings as examples, strategies as st

from benchmarks.fixed_number import FixedNumber
from benchmarks.placement.dac import DAC
from benchmarks.placement.multi_log import MultiLog
from benchmarks.placement.sepbit import SepBIT
from benchmarks.placement.sfs import SFS
from benchmarks.placement.warcip import WARCIP
from compactlib.blobstore import BlobPolicy, CompactAll, CostBenefit, Greedy
from compactlib.errors import InvalidInput
from compactlib.lab import BlobSettings, Operations, Zipf
from compactlib.lab.blobstore.placement.fadac import FADaC
from compactlib.lab.blobstore.placement.mixed import Mixed
from compactlib.lab.blobstore.placement.placement import Placement, Placer
from compactlib.lab.blobstore.placement.user_and_survivors import UserAndSurvivors
from compactlib.lab.blobstore.replay import BlobReplay
from compactlib.lab.traces.operations import DELETE, FOREVER, PUT, READ

pytest.importorskip("numpy")

import numpy as np

from compactlib.lab.blobstore.ahead import Classes, Writes


def pieces(seed: int, sizes: tuple[int, ...]) -> list[Operations]:
    """Many keys are put twice in a piece, several operations share a time, some pieces delete."""
    random, now, made = Random(seed), 0, []
    for number in range(30):
        count = random.choice([1, 40, 700, 2_000])
        times = array("q")
        for _ in range(count):
            now += random.choice([0, 0, 1, 3_600_000])
            times.append(now)
        deletes = number % 7 == 5
        made.append(Operations(
            kinds=bytes(random.choice([DELETE, 0]) for _ in range(count)) if deletes else bytes(count),
            keys=array("i", [min(int(random.paretovariate(0.3)), 900) for _ in range(count)]),
            sizes=random.choice(sizes), times_ms=times))
    return made


@pytest.mark.parametrize("changed", [{}, {"swap_segments": 3}, {"check_every_operations": 77}, {"min_free_segments": 9},
                                     {"copies_renew": True}, {"placement": SFS()},
                                     {"placement": SFS(classes=3), "check_every_operations": 77}], ids=str)
@pytest.mark.parametrize("sizes", [(3,), (3, 7)], ids=str)
def test_steps_by_arrays_are_the_loops_steps(monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any],
                                             sizes: tuple[int, ...]) -> None:
    settings = BlobSettings.of_slots(80, 200, **changed)
    policy = CostBenefit(min_used_fraction=0, min_reclaimed_segments=2)
    by_arrays = BlobReplay(policy, settings)
    monkeypatch.delattr("compactlib.lab.blobstore.by_arrays")
    monkeypatch.setitem(sys.modules, "compactlib.lab.blobstore.by_arrays", None)
    by_loops = BlobReplay(policy, settings)
    for each in pieces(1, sizes):
        by_arrays.feed(each)
        by_loops.feed(each)
        by_arrays.log.audit()
        assert by_arrays.log.view(each.times_ms[-1] + 1) == by_loops.log.view(each.times_ms[-1] + 1)
    report = by_arrays.report("")
    assert report == by_loops.report("")
    assert report.total.compactions > 10
    assert report.total.copied_bytes > 0


PLACEMENTS: list[Placement] = [Mixed(), UserAndSurvivors(keep_open=False), DAC(classes=2), SFS(classes=2),
                               FADaC(classes=3, step=1.5, request_records=3.5), WARCIP(classes=3, segments=2),
                               MultiLog(classes=3), SepBIT(classes=4, segments=1)]
POLICIES: list[BlobPolicy] = [Greedy(min_used_fraction=0), CostBenefit(min_used_fraction=0),
                              CompactAll(min_used_fraction=0), FixedNumber(victims=3),
                              FixedNumber(victims=2, min_dead_fraction=0.1, prefers="root benefit")]


@st.composite
def odd_pieces(draw: st.DrawFn, largest: int) -> list[Operations]:
    """A few small pieces, most of them plain PUTs of one size; times stand still, and may lie before the epoch."""
    now, made = draw(st.sampled_from([0, -500, 10**12])), []
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 40))

        def column(*values: int, size: int = count) -> st.SearchStrategy[list[int]]:
            return st.lists(st.sampled_from(values), min_size=size, max_size=size)

        times = []
        for step in draw(column(0, 0, 1, 5)):
            now += step
            times.append(now)
        changed: dict[str, Any] = {"kinds": bytes([PUT]) * count, "sizes": draw(st.integers(1, largest))}
        if draw(st.integers(0, 3)) == 0:
            changed = {"kinds": bytes(draw(column(PUT, PUT, PUT, DELETE, READ))),
                       "sizes": draw(column(*range(1, largest + 1))),
                       "lives_ms": draw(column(FOREVER, FOREVER, 0, 1, 10, 50))}
        made.append(Operations(keys=draw(column(*range(21))), times_ms=times, **changed))
    return made


@examples(max_examples=60)
@given(odd_pieces(8), st.fixed_dictionaries({
    "placement": st.sampled_from([None, None, *PLACEMENTS]),
    "deleted_retention_seconds": st.sampled_from([0, 0, 0.005, 0.05]),
    "forecast_seconds": st.sampled_from([0, 0, 0.02]), "check_every_operations": st.sampled_from([0, 3, 7]),
    "min_free_segments": st.sampled_from([None, 0, 2]), "max_dead_fraction": st.sampled_from([1.0, 0.3]),
    "swap_segments": st.integers(1, 3), "copies_renew": st.booleans()}), st.sampled_from(POLICIES))
def test_steps_by_arrays_are_the_loops_steps_in_odd_workloads(pieces: list[Operations], changed: dict[str, Any],
                                                              policy: BlobPolicy) -> None:
    same_steps(pieces, BlobSettings.of_slots(9, 20, bucket_seconds=0.004, **changed), policy)


def same_steps(pieces: list[Operations], settings: BlobSettings, policy: BlobPolicy) -> None:
    by_arrays = BlobReplay(policy, settings)
    with mock.patch.dict(sys.modules, {"compactlib.lab.blobstore.by_arrays": None}):
        vars(sys.modules["compactlib.lab.blobstore"]).pop("by_arrays", None)
        by_loops = BlobReplay(policy, settings)
    with mock.patch("compactlib.lab.blobstore.log._MANY", 1):
        for each in pieces:
            by_arrays.feed(each)
            by_loops.feed(each)
            by_arrays.log.audit()
            assert by_arrays.log.view(each.times_ms[-1] + 1) == by_loops.log.view(each.times_ms[-1] + 1)
            assert remembered(by_arrays) == remembered(by_loops)
    assert by_arrays.report("") == by_loops.report("")


def remembered(replay: BlobReplay) -> dict[str, Any]:
    """What a placement knows, but for what SFS knows of segments that it sums up anew."""
    return {name: value for name, value in vars(replay.log.placer).items()
            if name != "_sums" and not callable(value)} if replay.log.placer else {}


@st.composite
def long_pieces(draw: st.DrawFn, keys: int) -> list[Operations]:
    """Pieces of PUTs of one size, some keys much more often than others; a few deletes and other sizes between.

    The smallest log that they are written to has no room for them.
    """
    random, now, made = Random(draw(st.integers(0, 1 << 32))), draw(st.sampled_from([0, -500, 10**12])), []
    steps = draw(st.sampled_from([(0,), (1,), (0, 0, 1, 9)]))
    for count in draw(st.lists(st.sampled_from([1, 30, 200, 600]), min_size=1, max_size=6)):
        times = []
        for _ in range(count):
            now += random.choice(steps)
            times.append(now)
        is_odd = random.randrange(6) == 0
        made.append(Operations(
            kinds=bytes(random.choice([PUT, PUT, DELETE]) if is_odd else PUT for _ in range(count)),
            keys=[min(int(random.paretovariate(0.5)) - 1, keys - 1) for _ in range(count)],
            sizes=random.choice([1, 2, 3]) if is_odd and random.randrange(2) else 2, times_ms=times))
    return made


@examples(max_examples=15)
@given(long_pieces(60), st.fixed_dictionaries({
    "check_every_operations": st.sampled_from([0, 0, 40]), "min_free_segments": st.sampled_from([None, 0, 2]),
    "max_dead_fraction": st.sampled_from([1.0, 1.0, 0.3]), "copies_renew": st.booleans()}),
    st.sampled_from([(30, 10), (13, 16), (10, 33), (7, 12)]), st.sampled_from(POLICIES))
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda placement: placement.name)
def test_placing_many_at_once_is_placing_one_by_one(placement: Placement, pieces: list[Operations],
                                                    changed: dict[str, Any], shape: tuple[int, int],
                                                    policy: BlobPolicy) -> None:
    same_steps(pieces, BlobSettings.of_slots(*shape, placement=placement, **changed), policy)


class OneByOne(Placer):
    def write(self, key: int, now_ms: int) -> int:
        return key % 2

    def copy(self, key: int, now_ms: int) -> int:
        return key % 3


class Many(OneByOne):
    def ahead(self, writes: Writes) -> Classes:
        self.told = [*getattr(self, "told", []), len(writes)]
        return writes.keys % 2

    def copies(self, keys: Sequence[int], now_ms: int) -> list[int]:
        return [key % 3 for key in keys]


class OtherThanMany(Many):
    def write(self, key: int, now_ms: int) -> int:
        return 1 - key % 2

    def copy(self, key: int, now_ms: int) -> int:
        return 0


class OtherOneByOne(Placer):
    write, copy = OtherThanMany.write, OtherThanMany.copy


class CountsWhatLeaves(Many):
    """Of one's own, beside what the class before it tells."""

    gone = 0

    def left(self, key: int, row: int, placed: int) -> None:
        self.gone += 1


class Lazily(Many):
    def ahead(self, writes: Writes) -> Classes:
        return super().ahead(writes).astype(np.uint8)  # type: ignore[union-attr]

    def copies(self, keys: Sequence[int], now_ms: int) -> list[int]:
        return (key % 3 for key in keys)  # type: ignore[return-value]


class NoAnswer(Many):
    def copies(self, keys: Sequence[int], now_ms: int) -> list[int]:
        return None  # type: ignore[return-value]


class NoClass(Many):
    def ahead(self, writes: Writes) -> Classes:
        return writes.keys % 2 + 2


class TooFew(Many):
    def ahead(self, writes: Writes) -> Classes:
        return []


class TooMany(Many):
    def ahead(self, writes: Writes) -> Classes:
        return [0] * (len(writes) + 1)


class TooFewCopies(Many):
    def copies(self, keys: Sequence[int], now_ms: int) -> list[int]:
        return [0] * (len(keys) - 1)


@attrs.frozen
class OfOnesOwn:
    placer: type[Placer]
    name: str = "of one's own"
    classes: int = 3


def replayed(placer: type[Placer]) -> BlobReplay:
    replay = BlobReplay(Greedy(min_used_fraction=0, min_reclaimed_segments=4),
                        BlobSettings.of_slots(60, 16, placement=OfOnesOwn(placer)))
    for piece in Zipf(keys=600, writes=3_000).pieces(1):
        replay.feed(piece)
    return replay


@pytest.mark.parametrize(("many", "one_by_one"), [
    (Many, OneByOne), (CountsWhatLeaves, OneByOne), (Lazily, OneByOne), (OtherThanMany, OtherOneByOne)])
def test_a_scheme_of_ones_own_may_tell_many_classes_at_once(many: type[Placer], one_by_one: type[Placer]) -> None:
    found, expected = replayed(many), replayed(one_by_one)
    assert found.log.view(10**15).segments == expected.log.view(10**15).segments
    assert found.report("") == expected.report("")
    # Where a later class changes what one record gets, the earlier one's answers are not asked for.
    assert hasattr(found.log.placer, "told") == (many in (Many, Lazily))


def test_a_scheme_that_hears_of_what_leaves_hears_of_all_of_it() -> None:
    log = replayed(CountsWhatLeaves).log
    assert isinstance(log.placer, CountsWhatLeaves)
    assert log.placer.gone == log.placer.writes - sum(record >= 0 for record in log.records.current) > 1_000


@pytest.mark.parametrize(("placer", "told"), [
    (NoClass, r"gave class [23]; a class is a whole number from 0 to 2"), (TooFew, r"gave 0 classes of \d+ records"),
    (TooMany, r"gave \d+ classes of \d+ records; give one for each"), (TooFewCopies, r"gave \d+ classes of \d+ rec"),
    (NoAnswer, r"gave None of \d+ records; give a class for each")])
def test_many_answers_that_cannot_be_are_named(placer: type[Placer], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        replayed(placer)
