# SPDX-License-Identifier: Apache-2.0
"""Typical mistakes of hosts in sources of need, sensors, stores and schedulers: each is found, and told as a lesson."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from compactlib.catalog.errors import PinExpired
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Factor, Floor, Need, Unavailable
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects
from compactlib.scheduler import Command, JobStatus, LevelConfig, PollRequest, SchedulerConfig, SchedulerService
from compactlib.scheduler.model.update import PlanUpdate
from compactlib.staging import AnyOf, DeletesPolicy, ListingCostPolicy, SealedTokensPolicy, StagingChoice
from compactlib.staging.compaction.sense_policies import BranchPressure
from compactlib.testing import check_need_source, check_sense_policy, check_staging_backend
from compactlib.testing.histories.scheduler_histories import (
    Arrive,
    DoTick,
    Pass,
    Poll,
    Report,
    Said,
    SchedulerHistory,
    SchedulerStep,
)

# --------------------------------------------------------------------------------------------------- sources of need


class Backups:
    """Each backup needs the catalog from its time on: as it should be."""

    def __init__(self) -> None:
        self.times: list[Timestamp] = []

    def begin(self, time: Timestamp) -> None:
        self.times.append(time)

    def end(self, time: Timestamp) -> None:
        self.times.remove(time)

    def need(self, view: RetainedVersions) -> Need | None:
        return Floor(Factor.PIN, min(self.times)) if self.times else None


class NamesTheLatest(Backups):
    def need(self, view: RetainedVersions) -> Need | None:
        return Floor(Factor.PIN, max(self.times)) if self.times else None


class NamesTheVersion(Backups):
    """Takes a version's number for a time."""

    def need(self, view: RetainedVersions) -> Need | None:
        return Floor(Factor.PIN, max(view.version_at(min(self.times)), 1)) if self.times else None


class NeverLetsGo(Backups):
    def end(self, time: Timestamp) -> None:
        pass


class ForgetsTheSecond(Backups):
    """Keeps a set, so that two backups of one time are one."""

    def end(self, time: Timestamp) -> None:
        self.times = [each for each in self.times if each != time]


class FallsOverWhenIdle(Backups):
    def need(self, view: RetainedVersions) -> Need | None:
        return Floor(Factor.PIN, min(self.times))


class RefusesWhenIdle(Backups):
    def need(self, view: RetainedVersions) -> Need | None:
        if not self.times:
            raise PinExpired(owner="backup")
        return super().need(view)


class AnswersANumber(Backups):
    def need(self, view: RetainedVersions) -> Any:
        return min(self.times) if self.times else None


class TellsOnce(Backups):
    """Forgets what it has told."""

    def need(self, view: RetainedVersions) -> Need | None:
        found = super().need(view)
        self.times = []
        return found

    def end(self, time: Timestamp) -> None:
        pass


class DoesNotKnow(Backups):
    def need(self, view: RetainedVersions) -> Need | None:
        return Unavailable(Factor.PIN, "the backup service is starting") if self.times else None


@pytest.mark.parametrize("source", [Backups, DoesNotKnow])
def test_a_sound_source_passes(source: type[Backups]) -> None:
    check_need_source(source, hold=source.begin, release=source.end, max_examples=50)


@pytest.mark.parametrize(("source", "lesson"), [
    (NamesTheLatest, "which is later.*the lowest time of all needs, not the latest"),
    (NamesTheVersion, "far lower.*Is that the number of a version"),
    (NeverLetsGo, "history would be kept for ever|far lower"),
    (ForgetsTheSecond, "it answers None: the version would be cut away"),
    (FallsOverWhenIdle, r"raised ValueError\(.*None when nothing is needed"),
    (RefusesWhenIdle, r"raised PinExpired\(.*answer Unavailable"),
    (AnswersANumber, "need.. answered .*; give a Floor"),
    (TellsOnce, "two equal questions got two answers"),
])
def test_a_source_with_a_mistake_is_told_which(source: type[Backups], lesson: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){source.__name__}: .*({lesson})"):
        check_need_source(source, hold=source.begin, release=source.end, max_examples=60)


# ----------------------------------------------------------------------------------------------------- sense policies


@attrs.frozen
class Sensing:
    """A policy made of one function."""

    how: Callable[[BranchPressure], Any]
    name = "a function"

    def choose(self, view: BranchPressure, now: float) -> StagingChoice:
        found: StagingChoice = self.how(view)
        return found


def chosen(why: str | None) -> StagingChoice:
    return StagingChoice("not now", is_empty=True) if why is None else StagingChoice(why)


def changes_its_mind() -> Callable[[BranchPressure], StagingChoice]:
    calls = [0]

    def how(pressure: BranchPressure) -> StagingChoice:
        calls[0] += 1
        return chosen(f"call {calls[0]}" if pressure.deletes else None)

    return how


@attrs.define
class AddsUp:
    """Counts on its own what the sensor counts already."""

    total: int = 0
    name = "adds up"

    def choose(self, view: BranchPressure, now: float) -> StagingChoice:
        self.total += view.deletes
        return chosen("many deletes in all" if self.total > 1_000 else None)


@pytest.mark.parametrize("policy", [AnyOf(), DeletesPolicy(1), SealedTokensPolicy(3), ListingCostPolicy(50)], ids=repr)
def test_the_librarys_own_sense_policies_pass(policy: Any) -> None:
    check_sense_policy(policy, max_examples=50)


@pytest.mark.parametrize(("policy", "lesson"), [
    (Sensing(lambda pressure: StagingChoice("always")), "a branch on which nothing was counted"),
    (Sensing(lambda pressure: chosen(None)), "tombstones would pile up for ever"),
    (Sensing(lambda pressure: None), "answered None; give a StagingChoice"),
    (Sensing(lambda pressure: StagingChoice("" if pressure.deletes else "few", not pressure.deletes)),
     "its why is a sentence"),
    (Sensing(lambda pressure: chosen("just now" if pressure.deletes in (5, 1_000_000_000) else None)),
     "compare with >="),
    (Sensing(lambda pressure: StagingChoice(f"{1 // pressure.deletes}")),
     r"raised ZeroDivisionError\(.*called with every write"),
    (Sensing(changes_its_mind()), "two equal questions got two answers"),
    (AddsUp(), "two equal questions|nothing was counted|wants to compact again"),
])
def test_a_sense_policy_with_a_mistake_is_told_which(policy: Any, lesson: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){type(policy).__name__}: .*({lesson})"):
        check_sense_policy(policy, max_examples=100)


# ---------------------------------------------------------------------------------------------------- staging backends


class OrdersByText(MemoryStore):
    def scan(self, partition: bytes, start: bytes = b"", **arguments: Any) -> Any:
        return iter(sorted(super().scan(partition, start, **arguments), key=lambda entry: entry.key[::-1]))


class ForgetsObjects(MemoryObjects):
    def get(self, key: str) -> bytes:
        data = super().get(key)
        return data[:-1]


class ListsNothing(MemoryStore):
    def scan(self, partition: bytes, start: bytes = b"", **arguments: Any) -> Any:
        return super().scan(b"nowhere" if partition.startswith(b"stg-") else partition, start, **arguments)


class WritesOnce(MemoryStore):
    """Keeps the first value of a staged key."""

    def set(self, partition: bytes, key: bytes, value: Any) -> None:
        if partition.startswith(b"stg-") and any(True for entry in self.scan(partition, key) if entry.key == key):
            return
        super().set(partition, key, value)

    def transact(self, conditions: Any = (), puts: Any = (), deletes: Any = ()) -> None:
        kept = [put for put in puts if not (put.partition.startswith(b"stg-") and any(
            True for entry in self.scan(put.partition, put.key) if entry.key == put.key))]
        super().transact(conditions, kept, deletes)


def test_stores_in_memory_pass() -> None:
    check_staging_backend(MemoryStore, MemoryObjects, max_examples=15)


@pytest.mark.parametrize(("store", "objects"), [
    (ListsNothing, MemoryObjects), (WritesOnce, MemoryObjects), (OrdersByText, MemoryObjects),
    (MemoryStore, ForgetsObjects)])
def test_broken_stores_lose_what_was_written_and_are_told_so(store: type[MemoryStore],
                                                             objects: type[MemoryObjects]) -> None:
    with pytest.raises(AssertionError, match=r"(?s)(holds|ended in|failed).*try each one alone with check_kv_store"):
        check_staging_backend(store, objects, max_examples=40)


# --------------------------------------------------------------------------------------------------------- schedulers


SMALL = SchedulerConfig(levels=(LevelConfig(max_blocks=2, max_age_seconds=20),), lease_seconds=10, max_failures=2)


class ForgetsTheLease(SchedulerService):
    """Gives every job away again, whoever has it."""

    def prepare(self, command: Command, request: PollRequest) -> PlanUpdate:
        return super().prepare(attrs.evolve(command, appended_at=1_000.0 * command.index), request)


def live_through(world: SchedulerHistory, *steps: SchedulerStep) -> None:
    for step in steps:
        world.step(step)


def world_of(service: type[SchedulerService]) -> SchedulerHistory:
    world = SchedulerHistory(SMALL)
    world.service = service(SMALL)
    return world


def test_a_history_is_told_apart_from_a_broken_service() -> None:
    world = world_of(ForgetsTheLease)
    with pytest.raises(AssertionError, match="was given away, its lease lasts until"):
        live_through(world, Arrive(2), Poll(1), Poll(1), Poll(1))


def test_a_sound_service_lives_through_late_wrong_and_repeated_reports() -> None:
    world = SchedulerHistory(SMALL)
    late = Report((Said(0, JobStatus.SUCCESS), Said(0, JobStatus.SUCCESS), Said(2, JobStatus.FAILED)), 1, cleaned=True)
    live_through(world, Arrive(4), Poll(2), Pass(30.0), DoTick(), Poll(2), late)
    world.finish()
