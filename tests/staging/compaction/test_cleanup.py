# SPDX-License-Identifier: Apache-2.0
"""The cleanup of dropped tokens, the sweep for forgotten ones."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from compactlib.errors import BudgetSpent, InvalidInput
from compactlib.kv import MemoryStore, OutcomeUnknown, StoreFailed
from compactlib.kv.errors import PartlyWritten
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Budget, RecordingObserver
from compactlib.staging import Record
from compactlib.staging.cleanup import CleanupStats, TokenCleaner
from compactlib.staging.names import StagingToken, token_partition
from compactlib.staging.staged import Staged
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.world import World


def dropped_token(world: World, keys: int, name: str = "main") -> StagingToken:
    """A token with entries that a branch has just let go of."""
    tokens = world.context.tokens
    token = tokens.issue(name)
    for number in range(keys):
        tokens.set(token, b"k%05d" % number, Staged(Record.of(b"v")))
    tokens.mark_dropped({token: name})
    return token


def entries(world: World, token: StagingToken) -> int:
    return sum(1 for _ in world.store.scan(token_partition(token)))


def stats_of(outcome: object) -> CleanupStats:
    assert isinstance(outcome, Done), outcome
    stats: CleanupStats = outcome.stats
    return stats


def test_a_pass_removes_the_entries_then_the_mark_and_is_idempotent() -> None:
    world = World()
    branch = world.branch({"a": "1"}, staged={"k": "1"})
    token = dropped_token(world, 2500)
    cleaner = TokenCleaner(world.context, grace_seconds=0)
    stats = stats_of(cleaner.run())
    assert (stats.tokens_removed, stats.entries_removed, stats.young, stats.refused) == (1, 2500, 0, 0)
    assert entries(world, token) == 0
    assert not list(world.context.tokens.dropped())
    assert {mark.token for mark in world.context.tokens.registered()} == set(branch.record().tokens)
    assert isinstance(cleaner.run(), Skipped)
    assert branch.get(b"k").data == b"1"


def test_another_pass_finishes_what_a_crash_left() -> None:
    world = World()
    token = dropped_token(world, 10)
    assert world.context.tokens.remove_some(token, 5) == 5  # as far as the other process came
    assert stats_of(TokenCleaner(world.context, grace_seconds=0).run()).entries_removed == 5
    assert entries(world, token) == 0


def test_a_token_stays_for_the_grace_period() -> None:
    world = World()
    token = dropped_token(world, 3)
    cleaner = TokenCleaner(world.context, grace_seconds=60)
    world.clock.advance(59.9)
    outcome = cleaner.run()
    assert isinstance(outcome, Skipped)
    assert "1 dropped tokens wait until they are older than grace_seconds=60" in outcome.reason
    assert entries(world, token) == 3
    world.clock.advance(0.1)
    assert stats_of(cleaner.run()).tokens_removed == 1


def test_a_mark_made_just_now_counts_although_its_time_is_rounded_up() -> None:
    world = World()
    world.clock.advance(0.0006)
    token = dropped_token(world, 1)
    assert stats_of(TokenCleaner(world.context, grace_seconds=0).run()).tokens_removed == 1
    assert entries(world, token) == 0


def test_a_mark_of_a_clock_ahead_waits() -> None:
    world = World()
    token = dropped_token(world, 1)
    world.clock.set_now(world.clock.now() - 3600)
    assert isinstance(TokenCleaner(world.context, grace_seconds=0).run(), Skipped)
    assert entries(world, token) == 1


def test_a_token_in_use_is_never_removed_even_if_it_is_marked() -> None:
    observer = RecordingObserver()
    world = World()
    branch = world.branch({"a": "1"}, staged={"k": "1"}, sealed=[{"m": "2"}])
    world.context.tokens.mark_dropped(dict.fromkeys(branch.record().tokens, "main"))
    context = attrs.evolve(world.context, observer=observer)
    stats = stats_of(TokenCleaner(context, grace_seconds=0).run())
    assert (stats.refused, stats.tokens_removed, stats.entries_removed) == (2, 0, 0)
    assert [name for name, _ in observer.events].count("staging_marked_token_in_use") == 2
    assert branch.list().keys == (b"a", b"k", b"m")


def test_every_way_to_drop_a_token_ends_in_the_cleanup() -> None:
    """Commits, resets, moves of HEAD and compactions."""
    world = World()
    branch = world.branch({"a": "1"})
    other = world.repo.create_branch("other", "main")
    cleaner = TokenCleaner(world.context, grace_seconds=0, orphan_seconds=0)

    ways: list[Callable[[], object]] = [
        lambda: branch.commit("c"), branch.reset, world.compact, lambda: branch.reset_prefix(b"k"),
        lambda: branch.hard_reset("other", discard=True), lambda: world.repo.delete_branch("other")]
    for number, drop in enumerate(ways):
        branch.put(b"k", b"%d" % number)
        other.put(b"k", b"1") if number == 5 else None
        drop()
        cleaner.run()
        cleaner.sweep()
        world.repo.audit()
    cleaner.run()
    named = {token for found in world.context.branches.list() for token in found.record.tokens}
    assert {mark.token for mark in world.context.tokens.registered()} == named


def test_the_sweep_marks_what_everybody_forgot_and_spares_what_is_young() -> None:
    world = World()
    branch = world.branch({"a": "1"}, staged={"k": "1"})
    orphan = world.context.tokens.issue("main")
    world.context.tokens.set(orphan, b"k", Staged(None))
    cleaner = TokenCleaner(world.context, grace_seconds=10, orphan_seconds=100)
    assert isinstance(cleaner.sweep(), Skipped)
    world.clock.advance(100)
    swept = stats_of(cleaner.sweep())
    assert (swept.orphans_found, swept.changes) == (1, 1)
    assert isinstance(cleaner.sweep(), Skipped)  # marked once is enough
    assert isinstance(cleaner.run(), Skipped)  # the grace period begins with the mark
    world.clock.advance(10)
    assert stats_of(cleaner.run()).tokens_removed == 1
    assert entries(world, orphan) == 0
    assert branch.get(b"k").data == b"1"


def test_more_marks_than_one_batch_in_one_pass() -> None:
    world = World()
    branch = world.branch({"a": "1"}, staged={"k": "1"})
    for _ in range(1100):
        dropped_token(world, 1)
    assert stats_of(TokenCleaner(world.context, grace_seconds=0).run()).tokens_removed == 1100
    assert {mark.token for mark in world.context.tokens.registered()} == set(branch.record().tokens)


def test_a_budget_ends_a_pass_and_the_next_one_goes_on() -> None:
    world = World()
    first, second = dropped_token(world, 3), dropped_token(world, 3)
    budget = Budget()
    budget.cancel()
    outcome = TokenCleaner(world.context, grace_seconds=0).run(budget=budget)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, BudgetSpent)
    assert outcome.changed == "no"
    assert entries(world, first) + entries(world, second) == 6
    assert stats_of(TokenCleaner(world.context, grace_seconds=0).run()).tokens_removed == 2


def test_an_error_is_an_outcome_and_what_was_done_stays_done() -> None:
    failing: list[bool] = []

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.FAIL if failing and operation.name == "transact" else None

    world = World(FaultyStore(MemoryStore(), choose))
    token = dropped_token(world, 2)
    failing.append(True)
    cleaner = TokenCleaner(world.context, grace_seconds=0)
    outcome = cleaner.run()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreFailed)
    failing.clear()
    assert stats_of(cleaner.run()).tokens_removed == 1
    assert entries(world, token) == 0


def test_what_was_removed_before_the_store_failed_is_counted() -> None:
    requests: list[KVOperation] = []

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.name != "transact":
            return None
        requests.append(operation)
        return KVFault.FAIL if len(requests) == 3 else None

    world = World(FaultyStore(MemoryStore(limits=attrs.evolve(MemoryStore().limits, max_transact=4)), choose))
    token = dropped_token(world, 20)
    outcome = TokenCleaner(world.context, grace_seconds=0).run()
    assert isinstance(outcome, Failed)
    assert (type(outcome.error), outcome.changed) == (PartlyWritten, "partly")
    assert entries(world, token) == 12


def test_a_removal_without_an_answer_leaves_unknown_what_has_changed() -> None:
    world = World(FaultyStore(MemoryStore(), lambda operation: (
        KVFault.UNKNOWN_DONE if operation.name == "transact" else None)))
    dropped_token(world, 3)
    outcome = TokenCleaner(world.context, grace_seconds=0).run()
    assert isinstance(outcome, Failed)
    assert (type(outcome.error), outcome.changed) == (OutcomeUnknown, "unknown")


def test_numbers_that_make_no_sense_are_refused_and_results_print_themselves() -> None:
    world = World()
    for options in ({"grace_seconds": -1.0}, {"orphan_seconds": float("nan")}):
        with pytest.raises(InvalidInput, match="0 or more"):
            TokenCleaner(world.context, **options)
    assert CleanupStats(young=3).to_dicts()[0]["young"] == 3
    assert "<table" in CleanupStats()._repr_html_()
