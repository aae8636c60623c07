# SPDX-License-Identifier: Apache-2.0
"""The level of sealed tokens: told by whoever changes it, and cleared for branches that are gone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import attrs
import prometheus_client
import pytest

from compactlib.errors import BudgetSpent
from compactlib.kv import MemoryStore
from compactlib.outcome import Skipped
from compactlib.runtime import Budget, Observer, PrometheusObserver, RecordingObserver
from compactlib.runtime.observe import telling
from compactlib.staging import BranchNotFound
from compactlib.staging.compaction.metrics import StagingMetrics
from compactlib.staging.names import StagingToken
from compactlib.staging.record import BranchRecord
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.world import NOW, World


def record(sealed: int, version: int = 1) -> BranchRecord:
    return BranchRecord(version=version, staging_token=StagingToken(f"stg-{99:032x}"),
                        sealed_tokens=tuple(StagingToken(f"stg-{each:032x}") for each in range(sealed)))


def levels(observer: RecordingObserver) -> list[tuple[str, int | None]]:
    told = [(fields["branch"], fields["value"]) for name, fields in observer.events if name == "staging_sealed_tokens"]
    observer.events.clear()
    return told


def test_whoever_changes_the_record_tells() -> None:
    observer = RecordingObserver()
    world = World(events=StagingMetrics(observer, "main"))
    main = world.repo.create_branch("main")
    main.put(b"a", b"1")
    with pytest.raises(BudgetSpent):
        main.commit("too large", budget=Budget(total_bytes=1))  # no read comes after its seal
    assert levels(observer) == [("main", 1)]
    main.commit("c")
    assert levels(observer) == [("main", 0)]
    main.put(b"b", b"1")
    assert not isinstance(world.repo.compact(policy=NOW, budget=Budget(total_bytes=1)), Skipped)
    assert levels(observer) == [("main", 1)]
    main.put(b"p/1", b"1")
    main.reset_prefix(b"p/")
    assert levels(observer) == [("main", 2)]
    main.reset()
    assert levels(observer) == [("main", 0)]


def test_a_level_whose_telling_was_interrupted_is_told_again() -> None:
    class Interrupted(RecordingObserver):
        interrupts = 1

        def event(self, name: str, fields: Mapping[str, object]) -> None:
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            super().event(name, fields)

    observer = Interrupted()
    metrics = StagingMetrics(observer, "main")
    with pytest.raises(KeyboardInterrupt):
        metrics.record_written("main", record(2))
    metrics.record_written("main", record(2, version=2))
    metrics.record_written("main", record(3, version=3))
    assert levels(observer) == [("main", 2), ("main", 3)]


def test_a_write_without_an_answer_that_happened_is_told() -> None:
    unanswered = [False]

    def choose(operation: KVOperation) -> KVFault | None:
        if unanswered[0] and operation.name == "set_if":
            unanswered[0] = False
            return KVFault.UNKNOWN_DONE
        return None

    observer = RecordingObserver()
    world = World(FaultyStore(MemoryStore(), choose), events=StagingMetrics(observer, "main"))
    main = world.repo.create_branch("main")
    for seal in (lambda: main.commit("c", budget=Budget(total_bytes=1)),
                 lambda: world.repo.compact(policy=NOW, budget=Budget(total_bytes=1))):
        main.put(b"a", b"1")
        unanswered[0] = True
        with contextlib.suppress(BudgetSpent):
            seal()
        assert not unanswered[0]
        assert levels(observer) == [("main", 1)]
        main.reset()
        levels(observer)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another process"])
def test_a_deleted_branch_has_no_level(elsewhere: bool) -> None:
    registry = prometheus_client.CollectorRegistry()
    world = World(events=StagingMetrics(telling(PrometheusObserver(registry)), "main"))
    sealed, clean = world.branch({"a": "1"}, sealed=[{"b": "1"}]), world.branch({}, name="clean", sealed=[{}])

    def level(branch: str) -> float | None:
        return registry.get_sample_value("compactlib_staging_sealed_tokens", {"repository": "main", "branch": branch})

    assert sealed.list().keys == (b"a", b"b")
    clean.reset()
    assert (level("main"), level("clean")) == (1, 0)
    for branch in (sealed, clean):
        (world.another_repo() if elsewhere else world.repo).delete_branch(branch.name)
        with pytest.raises(BranchNotFound):
            branch.get(b"a")
        assert level(branch.name) is None


def test_a_slow_readers_record_tells_nothing_and_a_branch_made_anew_does() -> None:
    observer = RecordingObserver()
    metrics = StagingMetrics(observer, "main")
    for each in (record(1, 5), record(2, 6), record(1, 5), record(2, 6)):
        metrics.record_seen("b", each)
    assert levels(observer) == [("b", 1), ("b", 2)]
    anew = attrs.evolve(record(0), staging_token=StagingToken(f"stg-{500:032x}"))
    metrics.record_seen("b", anew)
    assert levels(observer) == [("b", 0)]
    metrics.branch_deleted("b")
    metrics.branch_deleted("never told")
    assert levels(observer) == [("b", None)]


def test_no_more_branches_are_told_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactlib.staging.compaction.metrics._MAX_BRANCHES", 2)
    observer = RecordingObserver()
    metrics = StagingMetrics(observer, "main")
    for branch in "abc":
        metrics.record_seen(branch, record(1))
    assert levels(observer) == [("a", 1), ("b", 1)]
    metrics.record_written("a", record(0, 2))
    metrics.record_seen("c", record(3))
    assert levels(observer) == [("a", 0), ("c", 3)]


def test_what_is_told_last_is_how_it_is() -> None:
    """A thread that was overtaken between two notifications does not have the last word."""
    told: list[Any] = []
    entered, overtaken = threading.Event(), threading.Event()

    class Slow(Observer):
        def event(self, name: str, fields: Mapping[str, Any]) -> None:
            if not entered.is_set():
                entered.set()
                assert overtaken.wait(30)
            told.append(fields["value"])

    metrics = StagingMetrics(Slow(), "main")
    slow = threading.Thread(target=metrics.record_seen, args=("b", record(1)))
    slow.start()
    assert entered.wait(30)
    metrics.record_written("b", record(0, 2))
    overtaken.set()
    slow.join(30)
    assert told == [1, 0]
