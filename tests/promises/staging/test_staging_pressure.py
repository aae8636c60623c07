# SPDX-License-Identifier: Apache-2.0
"""When a branch is compacted: the gauge of sealed tokens, the sensor's set beside a refusal, and room for ranges."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects
from compactlib.observer import EventRecorder
from compactlib.staging import Branch, CommittedRanges, CompactionSensor, PressurePolicy, Repository, StagingWorker


def sealed(branch: Branch) -> None:
    """Leave a sealed token: a commit seals it, and then its budget runs out."""
    branch.put(b"a", bytes(100))
    with pytest.raises(BudgetSpent):
        branch.commit("too large", budget=Budget(total_bytes=1))


@pytest.mark.parametrize(("ends", "value"), [
    (lambda branch, repository: branch.commit("all"), 0), (lambda branch, repository: branch.reset(), 0),
    (lambda branch, repository: repository.compact(branch=branch), 0),
    (lambda branch, repository: repository.delete_branch("main"), None),
], ids=["commit", "reset", "compaction", "deletion"])
def test_gauge_of_sealed_tokens_returns_to_zero(ends: Callable[[Branch, Repository], object],
                                                value: int | None) -> None:
    observer = EventRecorder()
    repository = Repository(MemoryStore(), CommittedRanges(MemoryObjects()), observer=observer)
    branch = repository.create_branch("main")
    sealed(branch)
    assert levels(observer) == [1]
    ends(branch, repository)
    assert levels(observer)[-1] == value


def levels(observer: EventRecorder) -> list[object]:
    return [fields["value"] for fields in observer.named("staging_sealed_tokens")]


def test_sensor_keeps_a_branch_whose_compaction_was_refused_by_the_window() -> None:
    clock = ManualClock(1_000_000.0)
    sensor = CompactionSensor(PressurePolicy(deletes=1), clock=clock)
    repository = Repository(MemoryStore(), CommittedRanges(MemoryObjects(), clock=clock), sensor=sensor, clock=clock)
    worker = StagingWorker(sensor, [repository], clock=clock, reclaim_seconds=None)
    main = repository.create_branch("main")

    def starts() -> float | None:
        main.put(b"a", b"1")
        main.delete(b"a")
        worker.run_pending()
        return main.record().compaction_started_at

    first = starts()
    assert first == clock.now()
    clock.advance(100.0)
    assert starts() == first
    assert [each.branch for each in sensor.take()] == ["main"]
    clock.advance(300.0)
    worker.run_pending()
    assert main.record().compaction_started_at == clock.now()
    assert sensor.take() == ()


class FullObjects(MemoryObjects):
    def available_bytes(self) -> int | None:
        return 1000


@pytest.mark.parametrize("is_planned", [False, True])
def test_compaction_without_room_for_its_ranges_changes_nothing(is_planned: bool) -> None:
    repository = Repository(MemoryStore(), CommittedRanges(FullObjects()))
    main = repository.create_branch("main")
    main.put(b"a", bytes(2000))
    before = main.record()
    report = repository.compact(repository.plan(branch=main)) if is_planned else repository.compact(branch=main)
    assert report.is_empty
    assert "with room for 1,000" in report.why
    assert main.record() == before
