# SPDX-License-Identifier: Apache-2.0
"""Compactions of a branch: races, plans, budgets, executors, what they answer and tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, InvalidInput
from compactlib.executors import Executor, LocalExecutor, ProcessExecutor
from compactlib.kv import MemoryStore, SqliteStore
from compactlib.objects import LocalObjects
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import RewriteOutcome, RewriteTask
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.staging import (
    BranchNotFound,
    CommittedRanges,
    Repository,
    SplitRule,
    StagingOptions,
    TombstoneCostPolicy,
)
from compactlib.staging.compaction.outcome import LostRace
from compactlib.staging.record import MAX_SEALED_TOKENS
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.compaction.stores_in_files import FileStores
from tests.staging.compaction.test_vectors_compaction import compacted, seen, sigma, values
from tests.staging.world import NOW, World


class Meanwhile:
    """A committed layer that lets something happen in the middle of the rewrite."""

    def __init__(self, world: World) -> None:
        self.world = world

    def during(self, act: object, repository: Repository) -> object:
        apply = self.world.committed.apply

        def applied(*args: object, **options: object) -> object:
            self.world.committed.apply = apply  # type: ignore[method-assign]
            assert callable(act)
            act()
            return apply(*args, **options)  # type: ignore[arg-type]

        self.world.committed.apply = applied  # type: ignore[method-assign, assignment]
        try:
            return repository.compact(policy=NOW)
        finally:
            self.world.committed.apply = apply  # type: ignore[method-assign]


def test_new_sealed_tokens_make_it_give_way_or_stay_in_front() -> None:
    world, branch = sigma()

    def seal() -> None:
        branch.put(b"e", b"5")
        world.context.branches.update("main", lambda record: record.sealed_with(world.context.tokens.issue("main")))

    outcome = Meanwhile(world).during(seal, world.repo)
    assert isinstance(outcome, LostRace)
    assert outcome.step == "swap"
    assert len(branch.record().sealed_tokens) == 2
    kept = Meanwhile(world).during(seal, world.another_repo(StagingOptions(on_new_sealed="keep")))
    assert isinstance(kept, Done)
    assert (kept.stats.sealed_before, kept.stats.sealed_after) == (2, 1)
    assert values(branch) == {b"b": b"2", b"c": b"3", b"e": b"5"}


@pytest.mark.parametrize("what", ["commit", "reset", "hard_reset", "delete", "recreate", "compact"])
def test_it_gives_way_to_everybody(what: str) -> None:
    world, branch = sigma()
    world.repo.create_branch("other", "main")

    def act() -> None:
        if what == "commit":
            assert isinstance(branch.commit("c"), Done)
        elif what == "reset":
            branch.reset()
        elif what == "hard_reset":
            branch.hard_reset("other", discard=True)
        elif what == "compact":
            compacted(world)
        else:
            world.repo.delete_branch("main")
            if what == "recreate":
                world.repo.create_branch("main", "other").put(b"z", b"9")

    outcome = Meanwhile(world).during(act, world.another_repo())
    assert isinstance(outcome, LostRace), outcome
    if what != "delete":
        expected = {"commit": {b"b": b"2", b"c": b"3"}, "compact": {b"b": b"2", b"c": b"3"},
                    "recreate": {b"a": b"1", b"b": b"2", b"z": b"9"}}.get(what, {b"a": b"1", b"b": b"2"})
        assert values(branch) == expected
        world.repo.audit()


def test_a_branch_that_is_full_of_sealed_tokens_is_emptied() -> None:
    world = World()
    branch = world.branch({"a": "1"}, staged={"k": "2"}, sealed=[{}] * (MAX_SEALED_TOKENS - 1) + [{"k": "1", "m": "1"}])
    staging_token = branch.record().staging_token
    stats = compacted(world)
    assert (stats.sealed_before, stats.sealed_after) == (MAX_SEALED_TOKENS, 0)
    assert branch.record().staging_token == staging_token
    assert values(branch) == {b"a": b"1", b"k": b"2", b"m": b"1"}


def test_the_loser_of_two_seals_leaves_no_token_behind() -> None:
    losing: list[bool] = []

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.CONFLICT if losing and operation.name == "set_if" else None

    world = World(FaultyStore(MemoryStore(), choose))
    world.branch({"a": "1"}).put(b"c", b"3")
    registered = len(list(world.context.tokens.registered()))
    losing.append(True)
    outcome = world.repo.compact(policy=NOW)
    losing.clear()
    assert isinstance(outcome, LostRace)
    assert outcome.step == "seal"
    assert len(list(world.context.tokens.registered())) == registered
    compacted(world)


# ------------------------------------------------------------------------------------------ plans, budgets, executors


def test_a_plan_says_what_there_is_to_gain_and_changes_nothing() -> None:
    world = World(rule=SplitRule(raggedness=40, max_bytes=1 << 20))
    branch = world.branch({f"key{number:04}": "v" for number in range(1000)})
    branch.delete_many([b"key%04d" % number for number in range(100, 200)])
    branch.put(b"key0150", b"back")
    before = branch.record()
    plan = world.repo.plan()
    assert branch.record() == before
    assert not plan.is_empty
    assert (plan.view.tombstones, plan.view.longest_run, plan.view.puts) == (99, 50, 1)
    stats = compacted(world)
    assert plan.view.ranges_touched >= stats.applied.ranges_read >= 1
    assert plan.bytes_to_copy == plan.bytes_needed
    assert plan.bytes_to_copy is not None
    assert plan.bytes_to_copy >= stats.applied.bytes_written > 0
    assert (plan.bytes_freed, plan.is_exact, plan.bytes_available) == (None, False, None)
    assert plan.view.ranges == stats.applied.ranges_read + stats.applied.ranges_reused
    assert "99 tombstones, at most 50 in a row" in repr(plan)
    assert "requests for a key that is not staged" in str(plan)
    assert "<table" in plan._repr_html_()
    again = world.repo.plan()
    assert again.is_empty
    assert again.why == "nothing to compact: 0 entries are staged, and 0 tokens are sealed"
    assert (again.bytes_to_copy, again.bytes_freed, again.is_exact) == (0, 0, True)
    branch.delete(b"key0000")
    throttled = world.repo.plan()
    assert throttled.is_empty
    assert f"at {world.clock.now() + 300:.3f}" in throttled.why
    assert "window_seconds" in throttled.why
    world.clock.advance(301)
    assert not world.repo.plan().is_empty


def test_a_plan_looks_at_no_more_than_it_may() -> None:
    world = World(options=StagingOptions(max_scanned=10))
    branch = world.branch({f"k{number:02}": "v" for number in range(50)})
    branch.delete_many([b"k%02d" % number for number in range(50)])
    plan = world.repo.plan()
    assert not plan.view.all_seen
    assert plan.view.tombstones == 10
    assert (plan.bytes_to_copy, plan.bytes_needed, plan.is_exact) == (None, None, False)
    assert "at least 10 tombstones" in plan.why


def test_the_cost_policy_pays_for_runs_and_not_for_scattered_deletes() -> None:
    world = World(rule=SplitRule(raggedness=40, max_bytes=1 << 20))
    branch = world.branch({f"key{number:04}": "v" * 2000 for number in range(1000)})
    branch.delete_many([b"key%04d" % number for number in range(0, 1000, 100)])
    policy = TombstoneCostPolicy(long_run=50)
    refused = world.repo.plan(policy)
    assert refused.is_empty
    assert "below long_run=50" in refused.why
    assert world.repo.compact(policy=policy) == Skipped(refused.why)
    branch.delete_many([b"key%04d" % number for number in range(500, 600)])
    assert world.repo.plan(policy).why == "101 tombstones in a row"
    assert not world.repo.plan(TombstoneCostPolicy(long_run=10_000, bytes_per_tombstone=1e9)).is_empty


def test_a_spent_budget_is_a_failure_after_which_everything_reads_as_before() -> None:
    world, branch = sigma()
    before = seen(branch)
    outcome = world.repo.compact(budget=Budget(total_bytes=1))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, BudgetSpent)
    assert outcome.changed == "no"
    assert seen(branch) == before
    compacted(world)
    assert seen(branch) == before


def test_a_branch_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(BranchNotFound):
        World().repo.compact(branch="none")
    with pytest.raises(InvalidInput):
        World().repo.compact(branch="")


def test_the_rewrite_runs_in_a_thread_and_in_another_process(tmp_path: Path) -> None:
    stores = FileStores(str(tmp_path))
    clock = ManualClock(1_000_000.0)
    with closing(SqliteStore(stores.sqlite_path)) as store, LocalObjects(stores.objects_path) as objects:
        repo = Repository(store, CommittedRanges(objects), stores=stores, clock=clock)
        branch = repo.create_branch("main")
        executors: list[Executor] = [LocalExecutor(workers=2), ProcessExecutor(workers=1)]
        for number, executor in enumerate(executors):
            branch.put(b"k%d" % number, b"v")
            outcome = repo.compact(policy=NOW, executor=executor)
            assert isinstance(outcome, Done), outcome
            assert outcome.stats.applied.added == 1
        assert values(branch) == {b"k0": b"v", b"k1": b"v"}


def test_an_executor_that_gives_something_else_is_named() -> None:
    world, _ = sigma()

    class Lazy:
        def run(self, tasks: object, **_: object) -> object:
            return iter(())

    outcome = world.repo.compact(executor=Lazy())  # type: ignore[arg-type]
    assert isinstance(outcome, Failed)
    assert "gave no outcome" in str(outcome.error)


def test_an_executor_that_gives_what_it_made_of_other_tokens_loses_nothing() -> None:
    class Remembers:
        """Answers a task of the same name as before with what came of that."""

        def __init__(self) -> None:
            self.made: list[RewriteOutcome] = []

        def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None, observer: Observer | None = None,
                ) -> Iterator[RewriteOutcome]:
            self.made = self.made or list(LocalExecutor().run(tasks, budget=budget, observer=observer))
            yield from self.made

    world = World()
    branch = world.repo.create_branch("main")
    executor = Remembers()
    branch.put(b"a", b"1")
    assert isinstance(world.repo.compact(policy=NOW, executor=executor), Done)
    branch.put(b"b", b"2")
    outcome = world.repo.compact(policy=NOW, executor=executor)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, InvalidInput)
    assert values(branch) == {b"a": b"1", b"b": b"2"}
    compacted(world)
    assert values(branch) == {b"a": b"1", b"b": b"2"}


def test_metrics_of_compactions() -> None:
    observer = RecordingObserver()
    world = World()
    repo = Repository(world.store, world.committed, clock=world.clock, observer=observer)
    branch = repo.create_branch("main")
    branch.put(b"a", b"1")
    repo.compact()
    repo.compact()
    labels = {("kind", "staging"), ("store", "main")}
    counts = {(dict(told)["outcome"], dict(told)["reason"]): value for (name, told), value in observer.counters.items()
              if name == "store_compactions" and labels <= set(told)}
    assert counts == {("done", "always"): 1, ("skipped", "nothing"): 1}
    assert [fields["outcome"] for name, fields in observer.events if name == "staging_compaction"] == [
        "compacted", "skipped"]
