# SPDX-License-Identifier: Apache-2.0
"""G1 to G6 under many schedules of two operations, and of three and four actors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import pytest

from tests.harness.branch_world import OPERATIONS, SETUPS, actors_of, check, world_of
from tests.harness.effort import Effort
from tests.harness.interleave import InterleavingFailed, explore_schedules, sample_schedules

PAIRED = ("put", "delete", "put_if", "get", "list", "commit", "compact", "reset", "reset_key", "reset_prefix",
          "merge", "hard_reset", "cleanup")
EVERYDAY = ("clean", "staged", "compacted", "hidden")
FEW, MANY = 6, 240
"""Schedules of two programs that have hundreds, every day and in the soak."""


def explore(setup: str, *programs: Sequence[str], most: int | None) -> None:
    actors = actors_of(*programs)
    try:
        explore_schedules(actors, world_of(setup, actors), check, max_schedules=most)
        if most is not None:
            sample_schedules(actors, world_of(setup, actors), check, schedules=most // 4, random=Random(setup))
    except InterleavingFailed as failed:
        failed.add_note(f"setup {setup!r}, actors {programs}")
        raise


@pytest.mark.parametrize("setup", EVERYDAY)
def test_every_pair_of_operations(setup: str) -> None:
    """Each pair in one of the setups: the soak runs every pair in each."""
    for number, (left, right) in enumerate(itertools.combinations_with_replacement(PAIRED, 2)):
        if number % len(EVERYDAY) == EVERYDAY.index(setup):
            explore(setup, [left], ["put2" if left == right == "put" else right], most=FEW // 2)


@pytest.mark.soak
@pytest.mark.parametrize("setup", SETUPS)
def test_every_pair_of_operations_under_every_schedule(setup: str) -> None:
    for left, right in itertools.combinations_with_replacement(PAIRED, 2):
        explore(setup, [left], ["put2" if left == right == "put" else right], most=None)


@pytest.mark.parametrize("other", ["put", "delete", "commit", "compact", "reset", "reset_key", "hard_reset", "merge"])
def test_diffs_and_conditional_puts(other: str, effort: Effort) -> None:
    for setup in ("staged", "compacted+values"):
        for name in ("diff", "put_if_exists"):
            explore(setup, [name], [other], most=effort(FEW, MANY))


@pytest.mark.parametrize("operation", ["commit", "compact"])
@pytest.mark.parametrize("name", [*PAIRED, "diff", "put_if_exists"])
def test_an_operation_against_a_rewrite_and_the_cleanup_after_it(operation: str, name: str, effort: Effort) -> None:
    """The cleanup empties tokens that the operation has yet to read: nothing may be taken for "nothing there"."""
    for setup in ("staged", "hidden+values"):
        explore(setup, [name], [operation, "cleanup"], most=effort(FEW, MANY))


@pytest.mark.parametrize("name", [*PAIRED, "diff"])
def test_an_operation_against_a_garbage_collection(name: str, effort: Effort) -> None:
    """A collected file may be the one that the operation creates again, under the same name."""
    for setup in ("garbage", "compacted"):
        explore(setup, [name], ["collect"], most=effort(FEW, MANY))


def random_programs(random: Random) -> list[list[str]]:
    names = [name for name in OPERATIONS if name != "collect"]
    names += ["put", "delete", "get", "commit", "compact", "cleanup"]
    programs = [random.choices(names, k=random.choice((1, 1, 2))) for _ in range(random.choice((3, 3, 4)))]
    if random.random() < 0.5:
        # What others read is taken away: where most of the mistakes were.
        programs[0] = [random.choice(("commit", "compact", "reset")), "cleanup"]
    return programs


def run_random(seed: int, programs: int, schedules: int) -> None:
    random = Random(seed)
    for number in range(programs):
        chosen = random_programs(random)
        setup = random.choice(SETUPS) + random.choice(("", "+values"))
        actors = actors_of(*chosen)
        try:
            sample_schedules(actors, world_of(setup, actors), check, schedules=schedules, random=random)
        except InterleavingFailed as failed:
            failed.add_note(f"program {number} of seed {seed}: setup {setup!r}, actors {chosen}")
            raise


def test_three_and_four_actors_under_random_schedules() -> None:
    run_random(1, 25, 8)


@pytest.mark.soak
def test_three_and_four_actors_under_thirty_thousand_random_schedules() -> None:
    run_random(2, 1500, 20)
