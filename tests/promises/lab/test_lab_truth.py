# SPDX-License-Identifier: Apache-2.0
"""The simulator against independent results: closed forms of write amplification, and a published comparison."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.closed_forms import (
    fifo_write_amplification,
    greedy_write_amplification,
    harmonic,
    random_write_amplification,
)
from benchmarks.oldest_first import OldestFirst
from compactlib.blobstore import BlobPolicy, CostBenefit, Greedy
from compactlib.errors import InvalidInput
from compactlib.lab import BlobLogModel, HotCold, Uniform, replay

SEGMENTS = 400
PER_SEGMENT = 32
FILLS = pytest.mark.parametrize("fill", [0.8, *(pytest.param(fill, marks=pytest.mark.soak)
                                                for fill in (0.2, 0.4, 0.5, 0.6, 0.7))])
NEARLY_FULL = pytest.mark.parametrize("fill", [0.85, 0.9])
"""The fuller the log, the larger it must be: a plan takes many segments then, and leaves one that is half full."""
_TRIGGER: dict[str, Any] = {"min_used_fraction": 0.0, "min_reclaimed_segments": 6}


def steady(policy: BlobPolicy, fill: float, *, hot: bool = False, overwrites: int = 4,
           segments: int = SEGMENTS) -> Any:
    slots = segments * PER_SEGMENT
    kind = HotCold if hot else Uniform
    report = replay(kind(keys=int(fill * slots), writes=overwrites * slots), policy,
                          BlobLogModel.of_slots(segments, PER_SEGMENT), seed=7)
    assert report.total.refused == 0
    return report.steady(0.5)


@FILLS
def test_greedy_matches_its_closed_form_within_three_percent(fill: float) -> None:
    found = steady(Greedy(**_TRIGGER), fill, segments=2 * SEGMENTS)
    assert found.write_amplification == pytest.approx(
        greedy_write_amplification(found.utilisation, PER_SEGMENT), rel=0.03)


@FILLS
def test_oldest_first_matches_its_closed_form_within_three_percent(fill: float) -> None:
    found = steady(OldestFirst(**_TRIGGER), fill)
    assert found.write_amplification == pytest.approx(fifo_write_amplification(found.utilisation), rel=0.03)


@pytest.mark.soak
@NEARLY_FULL
def test_both_match_their_closed_forms_in_a_log_that_is_nearly_full(fill: float) -> None:
    trigger: dict[str, Any] = {**_TRIGGER, "min_reclaimed_segments": 16}
    greedy = steady(Greedy(**trigger), fill, segments=3_200, overwrites=3)
    assert greedy.write_amplification == pytest.approx(
        greedy_write_amplification(greedy.utilisation, PER_SEGMENT), rel=0.03)
    oldest = steady(OldestFirst(**trigger), fill, segments=3_200, overwrites=3)
    assert oldest.write_amplification == pytest.approx(fifo_write_amplification(oldest.utilisation), rel=0.03)
    assert greedy.write_amplification < oldest.write_amplification


def test_closed_outputs_cost_their_empty_parts() -> None:
    """With one segment a plan, outputs are closed a third empty on average, and the log acts as one that is fuller."""
    found = steady(Greedy(min_used_fraction=0), 0.5, overwrites=3)
    filled = found.record_sum / found.used_sum
    assert filled < 0.9
    assert found.utilisation * filled == pytest.approx(0.5, rel=0.02)
    assert found.write_amplification > 1.1 * greedy_write_amplification(0.5, PER_SEGMENT)


@pytest.mark.parametrize("fill", [pytest.param(0.75, marks=pytest.mark.soak), 0.8])
def test_cost_benefit_beats_greedy_when_few_keys_get_most_writes(fill: float) -> None:
    """Rosenblum and Ousterhout (1992), section 3.5 and 3.6: with 90 % of the writes to 10 % of the files, greedy
    cleaning costs more than cost-benefit, by up to a half at high utilisation."""
    greedy = steady(Greedy(**_TRIGGER), fill, hot=True)
    cost_benefit = steady(CostBenefit(**_TRIGGER), fill, hot=True)
    assert cost_benefit.write_amplification < 0.9 * greedy.write_amplification


def test_the_fixed_point_is_the_published_one() -> None:
    """Xiang and Kurkoski (2012): with an over-provisioning factor of 0.3, write amplification is 2.36."""
    assert fifo_write_amplification(1 / 1.3) == pytest.approx(2.36, abs=0.005)


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.9])
def test_greedy_nears_oldest_first_from_below_as_segments_grow(utilisation: float) -> None:
    steps = [greedy_write_amplification(utilisation, count) for count in (16, 64, 256, 100_000)]
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(fifo_write_amplification(utilisation), rel=0.001)
    assert steps[-1] < random_write_amplification(utilisation)


def test_the_harmonic_numbers_are_those_that_one_adds_up() -> None:
    for count in (1, 2, 10, 1000):
        assert harmonic(count) == pytest.approx(sum(1 / number for number in range(1, count + 1)), rel=1e-9)
    assert harmonic(0) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("utilisation", [0.0, 1.0, -1.0])
def test_a_log_that_is_full_or_empty_has_no_closed_form(utilisation: float) -> None:
    for form in (fifo_write_amplification, random_write_amplification):
        with pytest.raises(InvalidInput, match="above 0 and below 1"):
            form(utilisation)
    with pytest.raises(InvalidInput, match="segments of one record"):
        greedy_write_amplification(0.5, 1)
