# SPDX-License-Identifier: Apache-2.0
"""The sensor: cases with known answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.staging import (
    AnyOf,
    CompactionSensor,
    DeletesPolicy,
    ListingCostPolicy,
    SealedTokensPolicy,
    StagingChoice,
)
from compactlib.staging.compaction.sense_policies import BranchPressure
from compactlib.staging.compaction.sensor import CompactionTrigger
from compactlib.staging.names import StagingToken
from compactlib.staging.record import BranchRecord


def token(number: int) -> StagingToken:
    return StagingToken(f"stg-{number:032x}")


def record(number: int = 1, sealed: int = 0, version: int = 1) -> BranchRecord:
    return BranchRecord(staging_token=token(number), sealed_tokens=tuple(token(1000 + each) for each in range(sealed)),
                        version=version)


def sensor_of(threshold: int = 10, *, buffer: int = 1000) -> CompactionSensor:
    return CompactionSensor(DeletesPolicy(threshold), buffer=buffer)


def delete(sensor: CompactionSensor, branch: str, times: int, *, repository: str = "repo", number: int = 1) -> None:
    for _ in range(times):
        sensor.events(repository).tombstones_written(branch, record(number), 1)


def fired(sensor: CompactionSensor) -> dict[str, int]:
    triggers = []
    while (trigger := sensor.take()) is not None:
        triggers.append(trigger.branch)
    return Counter(triggers)


def test_a_branch_fires_at_the_threshold() -> None:
    sensor = sensor_of()
    delete(sensor, "b1", 2)
    delete(sensor, "b2", 10)
    assert fired(sensor) == {"b2": 1}


def test_each_branch_counts_for_itself() -> None:
    sensor = sensor_of()
    delete(sensor, "b1", 10)
    delete(sensor, "b2", 11)
    assert fired(sensor) == {"b1": 1, "b2": 1}


@pytest.mark.parametrize(("times", "expected"), [(20, 2), (19, 1)])
def test_it_fires_every_time_the_threshold_is_reached(times: int, expected: int) -> None:
    sensor = sensor_of()
    delete(sensor, "b1", times)
    assert fired(sensor) == {"b1": expected}


def test_repositories_do_not_add_up() -> None:
    sensor = sensor_of()
    for repository in ("r1", "r2", "r3"):
        delete(sensor, "b", 9, repository=repository)
    assert not fired(sensor)
    delete(sensor, "b", 1, repository="r2")
    trigger = sensor.take()
    assert trigger is not None
    assert (trigger.repository, trigger.branch, trigger.pressure.deletes) == ("r2", "b", 10)
    assert trigger.why == "10 deletes, of which 10 are enough"


def test_a_new_staging_token_begins_anew() -> None:
    sensor = sensor_of()
    for number in range(1, 5):
        delete(sensor, "b", 8, number=number)
    assert not fired(sensor)


def test_closing_twice_and_counting_afterwards_does_nothing() -> None:
    sensor = sensor_of(1)
    sensor.close()
    sensor.close()
    delete(sensor, "b", 5)
    assert sensor.take() is None
    assert not sensor.to_dicts()


def test_what_was_triggered_before_closing_can_still_be_taken() -> None:
    sensor = sensor_of(1)
    delete(sensor, "b", 1)
    sensor.close()
    trigger = sensor.take()
    assert trigger is not None
    assert trigger.branch == "b"
    assert sensor.take() is None


def test_a_consumer_that_never_comes_back_blocks_nobody() -> None:
    sensor = sensor_of(1, buffer=1)
    delete(sensor, "b", 12)  # returns, though nobody takes anything
    assert fired(sensor) == {"b": 1}


def test_a_full_buffer_loses_no_trigger() -> None:
    sensor = sensor_of(10, buffer=1)
    delete(sensor, "b1", 10)
    delete(sensor, "b2", 10)  # no room
    assert fired(sensor) == {"b1": 1}
    delete(sensor, "b2", 1)
    trigger = sensor.take()
    assert trigger is not None
    assert (trigger.branch, trigger.pressure.deletes) == ("b2", 11)


def test_commits_resets_and_compactions_begin_anew() -> None:
    sensor = sensor_of()
    events = sensor.events("repo")
    ways: list[Callable[[BranchRecord], None]] = [
        lambda record: events.committed("b", record), lambda record: events.reset("b", record),
        lambda record: events.compacted("b", record), lambda record: events.record_seen("b", record)]
    for number, begin_anew in enumerate(ways):
        delete(sensor, "b", 9, number=number)
        begin_anew(record(100 + number))
        delete(sensor, "b", 9, number=100 + number)
        begin_anew(record(number + 1))
        assert not fired(sensor)
        assert sensor.pressure("repo", "b") == BranchPressure()


def test_what_was_deleted_beside_a_commit_or_compaction_is_counted_on() -> None:
    sensor = sensor_of()
    events = sensor.events("repo")
    delete(sensor, "b", 9)
    before = BranchRecord(version=2, staging_token=token(2), sealed_tokens=(token(1),))
    events.tombstones_written("b", before, 8)
    assert fired(sensor) == {"b": 1}
    for left in (attrs.evolve(before, version=3, sealed_tokens=()),) * 2:
        events.compacted("b", left)
        assert sensor.pressure("repo", "b").deletes == 8


def test_a_seal_keeps_the_count_and_a_slow_readers_record_changes_nothing() -> None:
    sensor = sensor_of(100)
    events = sensor.events("repo")
    delete(sensor, "b", 9)
    sealed = BranchRecord(version=2, staging_token=token(2), sealed_tokens=(token(1),))
    events.tombstones_written("b", sealed, 1)
    events.tombstones_listed("b", sealed, 5)
    events.record_seen("b", record(1))  # older
    assert sensor.pressure("repo", "b") == BranchPressure(deletes=10, sealed_tokens=1, tombstones_listed=5)
    committed = BranchRecord(version=3, staging_token=token(2))
    events.record_seen("b", committed)  # by another process
    assert sensor.pressure("repo", "b") == BranchPressure(deletes=1)
    events.tombstones_written("b", record(1), 7)  # acknowledged before it was sealed: committed meanwhile
    events.tombstones_listed("b", sealed, 5)
    events.record_seen("b", committed)
    assert sensor.pressure("repo", "b") == BranchPressure(deletes=1)


def test_a_branch_that_another_process_made_anew_is_counted_from_its_first_record() -> None:
    sensor = sensor_of(10)
    events = sensor.events("repo")
    events.tombstones_written("b", record(1, version=50), 9)
    for version in (1, 2):
        events.tombstones_written("b", record(2, version=version), 4)
    assert sensor.pressure("repo", "b") == BranchPressure(deletes=8)
    events.tombstones_written("b", record(2, version=3), 2)
    assert fired(sensor) == {"b": 1}


def test_what_is_found_at_the_start_is_not_counted_twice() -> None:
    sensor = sensor_of(10)
    delete(sensor, "b", 6)
    for _ in range(2):
        sensor.seed("repo", "b", record(), tombstones={token(1): 9, token(7): 50})  # the other token is gone
    assert sensor.pressure("repo", "b").deletes == 9
    assert not fired(sensor)
    delete(sensor, "b", 1)
    assert fired(sensor) == {"b": 1}
    sensor.seed("repo", "b", record(), tombstones={token(1): 10})
    assert fired(sensor) == {"b": 1}, "who surveys has not heard of it"
    assert sensor.pressure("repo", "b").deletes == 10


def test_sealed_tokens_that_stay_fire_once() -> None:
    sensor = CompactionSensor(SealedTokensPolicy(3))
    events = sensor.events("repo")
    for sealed in (1, 2, 3):
        for _ in range(5):  # every read and write sees the record
            events.record_seen("b", record(sealed, sealed))
    assert fired(sensor) == {"b": 1}
    events.record_seen("b", record(9, 0))  # a commit somewhere
    for sealed in (2, 3):
        events.record_seen("b", record(10, sealed))
    assert fired(sensor) == {"b": 1}
    assert sensor.pressure("repo", "b").sealed_tokens == 3


def test_a_threshold_of_one_fires_at_the_first_delete() -> None:
    sensor = sensor_of(1)
    delete(sensor, "b", 1)
    assert fired(sensor) == {"b": 1}


def test_deleted_branches_are_forgotten() -> None:
    sensor = sensor_of()
    for number in range(1000):
        delete(sensor, f"b{number}", 1)
        sensor.events("repo").branch_deleted(f"b{number}")
    assert not sensor.to_dicts()


def test_it_keeps_no_more_branches_than_it_may() -> None:
    sensor = CompactionSensor(DeletesPolicy(10), max_branches=2)
    for branch in ("b1", "b2", "b1", "b3"):
        delete(sensor, branch, 1)
    assert [row["branch"] for row in sensor.to_dicts()] == ["b1", "b3"]
    assert "b1" in sensor._repr_html_()


def test_tombstones_that_listings_pass_over_fire_too() -> None:
    sensor = CompactionSensor(AnyOf((DeletesPolicy(5), ListingCostPolicy(100))))
    sensor.events("repo").tombstones_listed("b", record(), 99)
    assert not fired(sensor)
    sensor.events("repo").tombstones_listed("b", record(), 1)
    trigger = sensor.take()
    assert trigger is not None
    assert trigger.why == "100 tombstones passed over by listings, of which 100 are enough"


def test_policies_are_pure_and_refuse_nonsense() -> None:
    pressure = BranchPressure(deletes=1000, sealed_tokens=8, tombstones_listed=10_000)
    assert AnyOf().choose(pressure, 0) == StagingChoice("1000 deletes, of which 1000 are enough")
    assert AnyOf().choose(attrs.evolve(pressure, deletes=999), 0).why == "8 sealed tokens, of which 8 are enough"
    nothing = AnyOf().choose(BranchPressure(deletes=999, sealed_tokens=7, tombstones_listed=9_999), 0)
    assert nothing.is_empty
    assert nothing.why == ("999 deletes, below threshold=1000; lower it, or wait; "
                           "7 sealed tokens, below threshold=8; lower it, or wait; "
                           "9999 tombstones passed over by listings, below threshold=10000; lower it, or wait")
    for policy in (DeletesPolicy, SealedTokensPolicy, ListingCostPolicy):
        with pytest.raises(InvalidInput, match="at least 1"):
            policy(0)
        with pytest.raises(InvalidInput, match=r"threshold is 2\.5; it must be a whole number"):
            policy(2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at least 1"):
        CompactionSensor(buffer=0)


def test_a_listener_is_called_at_each_trigger_and_breaks_nothing() -> None:
    sensor = sensor_of(1)
    taken: list[object] = []

    def listener() -> None:
        taken.append(sensor.take())
        raise ZeroDivisionError

    sensor.listen(listener)
    sensor.listen(listener)
    delete(sensor, "b", 1)
    assert [each.branch for each in taken if isinstance(each, CompactionTrigger)] == ["b"]
    sensor.unlisten(listener)
    delete(sensor, "b", 1)
    assert len(taken) == 1
    assert fired(sensor) == {"b": 1}


def test_a_policy_is_told_the_time() -> None:
    clock = ManualClock(1000.0)
    asked: list[float] = []

    class Sense:
        name = "a host's"

        def choose(self, view: BranchPressure, now: float) -> StagingChoice:
            asked.append(now)
            return StagingChoice("never", is_empty=True)

    sensor = CompactionSensor(Sense(), clock=clock)
    delete(sensor, "b", 1)
    clock.advance(5)
    delete(sensor, "b", 1)
    assert asked == [1000.0, 1005.0]
    assert not fired(sensor)
