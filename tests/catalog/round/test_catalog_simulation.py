# SPDX-License-Identifier: Apache-2.0
"""The cluster under the simulation: many seeds, the same seed twice, and a seed replayed by one command."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.catalog.simulation.run import CatalogSimulation, SimulationResult, main, run_seed
from tests.catalog.simulation.world import SimulationFailure

ORDINARY = 90
SOAK = 5000
BATCH = 30


def run_batch(first: int) -> list[SimulationResult]:
    return [run_seed(seed) for seed in range(first, first + BATCH)]


@pytest.mark.parametrize("first", range(1, ORDINARY + 1, BATCH))
def test_every_invariant_holds_and_the_log_shrinks(first: int) -> None:
    results = run_batch(first)
    assert sum(len(result.cuts) for result in results) > BATCH
    assert all(result.cuts[-1] == result.versions - 1 for result in results)


@pytest.mark.soak
def test_every_invariant_holds_for_five_thousand_seeds() -> None:
    with ProcessPoolExecutor() as pool:
        results = [result for batch in pool.map(run_batch, range(10_000, 10_000 + SOAK, BATCH)) for result in batch]
    assert len(results) >= SOAK
    assert {result.nodes for result in results} == {3, 4, 5, 6, 7}
    assert sum(len(result.cuts) for result in results) > 2 * SOAK


def test_the_same_seed_gives_the_same_story_ten_times() -> None:
    first = run_seed(10, story=True)
    assert len(first.story) > 100
    for _ in range(9):
        assert run_seed(10, story=True) == first


def test_the_same_seed_gives_the_same_story_in_another_process() -> None:
    told = {subprocess.run([sys.executable, "-m", "tests.catalog.simulation.run", "10"], check=True,
                           stdout=subprocess.PIPE, env={"PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")}
    assert len(told) == 1


def test_other_seeds_give_other_stories() -> None:
    assert len({run_seed(seed).trace for seed in range(1, 11)}) == 10


def test_a_seed_is_replayed_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["7"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("SimulationResult(seed=7, ")
    assert "is elected in term 1" in told
    assert "cuts history to" in told
    assert main(["1", "3"]) == 0
    assert capsys.readouterr().out == "3 seeds from 1: every invariant holds, and the log shrank\n"
    assert main([]) == 2


class Broken(CatalogSimulation):
    """Fails at the end."""

    def _check_end(self) -> None:
        raise KeyError("what was wrong")


def test_a_failure_names_the_seed_the_time_and_the_command() -> None:
    with pytest.raises(SimulationFailure, match=r"seed 3 at \d+\.\d+ s: KeyError: 'what was wrong'; replay it with: "
                                                r"python -m tests\.catalog\.simulation\.run 3"):
        Broken(3).run()
