# SPDX-License-Identifier: Apache-2.0
"""A host's own policy or configuration in three lines: what is good passes, what is planted fails with its lesson."""

from __future__ import annotations

import attrs
import pytest

from compactlib.raftlog import CostPolicy, LogChoice, LogPolicy, LogView, RaPolicy, SeedPolicy
from compactlib.raftlog.compaction.plan.policy import LeftOut
from compactlib.scheduler import LevelConfig, SchedulerConfig
from compactlib.testing import check_blob_policy, check_raftlog_policy, check_scheduler_config
from compactlib.testing.scheduler import simulation as scheduler_simulation
from compactlib.testing.scheduler.simulation import SimulationFailure, SimulationReport

SMALL = SchedulerConfig(levels=(LevelConfig(max_blocks=4, max_age_seconds=30),))


@pytest.mark.parametrize("policy", [SeedPolicy(), SeedPolicy(max_sources=3), RaPolicy(), CostPolicy()], ids=str)
def test_the_librarys_own_policies_pass(policy: LogPolicy) -> None:
    check_raftlog_policy(policy, max_examples=15)


@attrs.frozen
class Planted:
    """A policy with one fault."""

    fault: str

    @property
    def name(self) -> str:
        return self.fault

    def choose(self, view: LogView, now: float) -> LogChoice:
        numbers = tuple(segment.number for segment in view.candidates)
        if self.fault == "names twice":
            again = tuple(LeftOut(number, "again") for number in numbers)
            return LogChoice(tuple((number,) for number in numbers), again, "planted")
        if self.fault == "forgets":
            return LogChoice((), (), "planted")
        return LogChoice((numbers,) if numbers else (), (), "planted")


@pytest.mark.parametrize(("fault", "lesson"), [
    ("names twice", "is named twice.*exactly one group or is left out"),
    ("forgets", "neither in a group nor left out.*filled_groups"),
    ("takes all", "wholly live, rewriting it alone changes nothing"),
])
def test_a_planted_policy_fails_with_its_lesson(fault: str, lesson: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){lesson}"):
        check_raftlog_policy(Planted(fault), max_examples=20)


def test_the_blob_stores_check_is_the_same_one() -> None:
    from compactlib.testing.policies import blob_strategies

    assert check_blob_policy is blob_strategies.check_blob_policy


@pytest.mark.parametrize("config", [SMALL, attrs.evolve(SMALL, lease_seconds=2.0)])
def test_a_good_configuration_passes(config: SchedulerConfig) -> None:
    check_scheduler_config(config, seeds=(1, 2))


@pytest.mark.parametrize(("changes", "lesson"), [
    ({"levels": (LevelConfig(max_blocks=4),)}, "keeps fewer than that uncompacted for ever"),
    ({"max_failures": 0}, "one poisoned block"),
    ({"backoff_seconds": 10.0, "max_backoff_seconds": 1.0}, "longer than the longest"),
    ({"max_queue_size": 0}, "every replica's memory"),
    ({"cleanup_min_level": 3, "cleanup_max_level": 5, "standalone_cleanup": False}, "is never deleted"),
    ({"cleanup_delay_seconds": 1.0}, "may still read them"),
])
def test_a_planted_configuration_fails_with_its_lesson(changes: dict[str, object], lesson: str) -> None:
    with pytest.raises(AssertionError, match=lesson):
        check_scheduler_config(attrs.evolve(SMALL, **changes), seeds=())  # type: ignore[arg-type]


def test_every_lesson_is_told_at_once() -> None:
    with pytest.raises(AssertionError) as caught:
        check_scheduler_config(attrs.evolve(SMALL, max_failures=0, max_queue_size=0))
    assert str(caught.value).count("\n- ") == 2


def test_a_world_in_which_it_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seed: int, *_: object, **__: object) -> SimulationReport:
        raise SimulationFailure(seed=seed, what="a token went back", trace="")

    monkeypatch.setattr("compactlib.testing.policies.policy_checks.simulate", broken)
    assert scheduler_simulation.simulate is not broken
    with pytest.raises(AssertionError, match=r"world 1 .*a token went back"):
        check_scheduler_config(SMALL)
