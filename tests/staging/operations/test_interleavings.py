# SPDX-License-Identifier: Apache-2.0
"""G1 to G6 under every schedule of two operations, and many of three and four; and that old mistakes are found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
import pytest

from compactlib.kv import OutcomeUnknown, PredicateFailed
from compactlib.outcome import Skipped
from compactlib.runtime import Budget, Observer
from compactlib.staging import Commit, Record
from compactlib.staging.compaction.commit import Compactor
from compactlib.staging.errors import TooManyTries
from compactlib.staging.model.values import MetaRangeId
from compactlib.staging.operations.branch_view import BranchView
from compactlib.staging.operations.uncommitted import first_uncommitted
from compactlib.staging.records.branch_store import BranchUpdate
from compactlib.staging.records.layers import changes_of
from compactlib.staging.records.record import BranchRecord
from compactlib.staging.records.staged import Staged
from tests.harness.effort import Effort
from tests.staging.branch_oracle import check
from tests.staging.branch_world import (
    MAIN,
    OPERATIONS,
    SETUPS,
    SOURCE,
    Act,
    K,
    M,
    World,
    actors_of,
    world_of,
)
from tests.tools.interleave.explore import explore_schedules, sample_schedules
from tests.tools.interleave.failure import InterleavingFailed
from tests.tools.interleave.history import ABSENT, HistoryOperation

REQUIRED = ("put", "delete", "put_if", "get", "list", "commit", "compact", "reset", "reset_key", "reset_prefix",
            "merge", "hard_reset", "cleanup")


def explore_programs(setup: str, *programs: Sequence[str], rules: dict[str, Act] | None = None) -> int:
    actors = actors_of(*programs, rules=rules)
    report = explore_schedules(actors, world_of(setup, actors), check)
    assert report.complete
    return report.schedules


@pytest.mark.parametrize("setup", [setup if setup in ("clean", "staged", "compacted", "hidden") else
                                   pytest.param(setup, marks=pytest.mark.soak) for setup in SETUPS])
def test_every_pair_of_operations_under_every_schedule(setup: str) -> None:
    count = 0
    for left, right in itertools.combinations_with_replacement(REQUIRED, 2):
        count += explore_programs(setup, [left], ["put2" if left == right == "put" else right])
    assert count > 400


@pytest.mark.parametrize("other", ["put", "delete", "commit", "compact", "reset", "reset_key", "hard_reset", "merge"])
def test_diffs_and_the_other_ways_to_compact_under_every_schedule(other: str) -> None:
    for setup in ("staged", "compacted"):
        explore_programs(setup, ["diff"], [other])
        explore_programs(setup, ["compact_keeping"], [other])
        explore_programs(setup, ["put_if_exists"], [other])


@pytest.mark.parametrize("setup", ["staged+cas", *(pytest.param(each, marks=pytest.mark.soak)
                                                   for each in ("clean+cas", "compacted+cas"))])
def test_pairs_on_a_store_that_compares_values_one_key_at_a_time(setup: str) -> None:
    for name in ("put_if", "put_if_exists"):
        for other in (*REQUIRED, "put_if_exists"):
            explore_programs(setup, [name], [other])
    explore_programs(setup, ["put_if", "delete", "put_if"], ["compact"])


@pytest.mark.parametrize("operation", ["commit", "compact"])
@pytest.mark.parametrize("name", [*REQUIRED, "diff"])
def test_an_operation_against_a_rewrite_and_the_cleanup_after_it(operation: str, name: str, effort: Effort) -> None:
    """The cleanup empties tokens that the operation has yet to read: nothing may be taken for "nothing there"."""
    if name in ("commit", "compact", "cleanup"):
        # Thousands of schedules: the first few hundred here, all of them in the soak.
        actors = actors_of([name], [operation, "cleanup"])
        explore_schedules(actors, world_of("staged", actors), check, max_schedules=150)
    else:
        for setup in ("staged", "hidden") if effort.full else ("staged" if operation == "compact" else "hidden",):
            explore_programs(setup, [name], [operation, "cleanup"])


@pytest.mark.parametrize("name", [*REQUIRED, "diff"])
def test_an_operation_against_a_garbage_collection(name: str, effort: Effort) -> None:
    """What is collected may be just what the operation makes again, under the same name."""
    for setup in ("garbage", "compacted")[:effort(1, 2)]:
        actors = actors_of([name], ["collect"])
        # A commit tries ten times against the collection, which makes more schedules than can be run.
        report = explore_schedules(actors, world_of(setup, actors), check,
                                   max_schedules=100 if name == "commit" else None)
        assert report.complete or name == "commit"


@pytest.mark.soak
@pytest.mark.parametrize("operation", ["commit", "compact"])
@pytest.mark.parametrize("name", ["commit", "compact", "cleanup"])
def test_two_rewrites_and_a_cleanup_under_every_schedule(operation: str, name: str) -> None:
    for setup in ("staged", "sealed", "hidden"):
        explore_programs(setup, [name], [operation, "cleanup"])


def test_a_write_and_what_is_read_after_it_against_a_compaction() -> None:
    explore_programs("clean", ["put", "get", "delete", "get"], ["compact"])


def random_programs(random: Random) -> list[list[str]]:
    count = random.choice((3, 3, 4))
    names = [name for name in OPERATIONS if name != "collect"]
    names += ["put", "delete", "get", "commit", "compact", "cleanup"]
    programs = [random.choices(names, k=random.choice((1, 1, 2))) for _ in range(count)]
    if random.random() < 0.5:
        # What others look at is taken away: where most of the mistakes were.
        programs[0] = [random.choice(("commit", "compact", "reset", "compact_keeping")), "cleanup"]
    return programs


def run_random(seed: int, programs: int, schedules: int) -> None:
    random = Random(seed)
    for number in range(programs):
        chosen = random_programs(random)
        setup = random.choice(SETUPS) + random.choice(("", "+cas"))
        actors = actors_of(*chosen)
        try:
            sample_schedules(actors, world_of(setup, actors), check, schedules=schedules, random=random)
        except InterleavingFailed as failed:
            failed.add_note(f"program {number} of seed {seed}: setup {setup!r}, actors {chosen}")
            raise


def test_three_and_four_actors_under_random_schedules() -> None:
    run_random(1, 40, 10)


@pytest.mark.soak
def test_three_and_four_actors_under_thirty_thousand_random_schedules() -> None:
    run_random(2, 1500, 20)


@pytest.mark.soak
@pytest.mark.parametrize("setup", ["staged", "sealed"])
def test_three_actors_depth_first(setup: str) -> None:
    for programs in (("put", "commit", "compact"), ("delete", "commit", "compact"), ("get", "compact", "cleanup"),
                     ("reset_prefix", "commit", "compact")):
        actors = actors_of(*([name] for name in programs))
        explore_schedules(actors, world_of(setup, actors), check, max_schedules=5000)


# ------------------------------------------------------------------------------ mistakes, planted one by one


def without_second_look(world: World, actor: str, noted: HistoryOperation) -> None:
    """A read that does not look at the record again."""
    context = world.contexts[actor]
    record = context.branches.read(MAIN).record
    found = BranchView.of(context, MAIN, record).find(K).record
    noted.reads[K] = ABSENT if found is None else found.data


def delete_with_shortcut(world: World, actor: str, noted: HistoryOperation) -> None:
    """The delete that takes any tombstone for "already deleted", and looks at the staging token alone."""
    noted.write(K, ABSENT)
    context = world.contexts[actor]
    while True:
        record = context.branches.read(MAIN).record
        view = BranchView.of(context, MAIN, record)
        if (context.tokens.get(record.staging_token, K) or context.committed.get(view.base, K)
                or view.find_staged(K).record is not None):
            context.tokens.set(record.staging_token, K, Staged(None))
        if context.branches.read(MAIN).record.staging_token == record.staging_token:
            return


def put_without_second_look(world: World, actor: str, noted: HistoryOperation) -> None:
    """A put that is acknowledged without asking whether its token is still in use."""
    noted.write(K, b"P")
    context = world.contexts[actor]
    context.tokens.set(context.branches.read(MAIN).record.staging_token, K, Staged(Record.of(b"P")))


def reset_key_without_second_look(world: World, actor: str, noted: HistoryOperation) -> Any:
    """A key reset in a token that may have been read already."""
    noted.writes[K] = frozenset()
    context = world.contexts[actor]
    view = BranchView.of(context, MAIN, context.branches.read(MAIN).record)
    if view.find_staged(K).layer is not None or view.base != view.head:
        context.tokens.set(view.record.staging_token, K, Staged(context.committed.get(view.head, K)))
    return Skipped("planted")


def reset_prefix_in_old_token(world: World, actor: str, noted: HistoryOperation) -> Any:
    """Tombstones into the old staging token, then one try to seal it."""
    noted.writes[K] = frozenset()
    context = world.contexts[actor]
    found = context.branches.read(MAIN)
    view = BranchView.of(context, MAIN, found.record)
    if view.find_staged(K).layer is not None and context.committed.get(view.head, K) is None:
        context.tokens.set(found.record.staging_token, K, Staged(None))
    try:
        context.branches.try_update(found, found.record.sealed_with(context.tokens.issue(MAIN)))
    except PredicateFailed as error:
        raise TooManyTries(operation="reset_prefix", branch=MAIN, tries=1) from error
    return Skipped("planted")


def hard_reset_without_clearing(world: World, actor: str, noted: HistoryOperation) -> Any:
    """HEAD moves, the compacted metarange and the tokens stay."""
    target = world.contents_of(world.first_commit)
    for key in (b"a", b"b", K, M):
        noted.write(key, target.get(key, ABSENT))
    world.contexts[actor].branches.update(
        MAIN, lambda record: attrs.evolve(record, commit_id=world.first_commit, sealed_tokens=()))
    return Skipped("planted")


def merge_without_second_look(world: World, actor: str, noted: HistoryOperation) -> Any:
    """The second step of a merge asks the sealed tokens alone, and leaves the compacted metarange."""
    context = world.contexts[actor]
    source = context.branches.read(SOURCE).record.commit_id
    if BranchView.of(context, MAIN, context.branches.read(MAIN).record).find_staged(K).record is not None:
        return "dirty"
    context.branches.update(MAIN, lambda record: record.sealed_with(context.tokens.issue(MAIN)))
    dirty = False

    def move(record: BranchRecord) -> BranchRecord | None:
        nonlocal dirty
        bare = attrs.evolve(record, compacted_metarange_id=None)
        cache = _no_cache(context)
        dirty = first_uncommitted(BranchView.of(context, MAIN, bare), cache, include_staging=False) is not None
        return None if dirty else attrs.evolve(record, commit_id=source, sealed_tokens=())

    context.branches.update(MAIN, move)
    if dirty:
        return "dirty"
    noted.write(M, b"1")
    return Skipped("planted")


def _no_cache(context: Any) -> Any:
    from compactlib.staging.operations.diff_cache import DiffCache
    return DiffCache(context.committed, 1 << 20)


def commit_on_head(world: World, actor: str, noted: HistoryOperation) -> Any:
    """A commit that knows nothing of compactions: it applies the sealed tokens to HEAD, and leaves the field."""
    context = world.contexts[actor]
    context.branches.update(MAIN, lambda record: record.sealed_with(context.tokens.issue(MAIN)))

    def switch(record: BranchRecord) -> BranchRecord:
        head = context.commits.metarange_of(record.commit_id)
        applied = context.committed.apply(head, changes_of(context.tokens, record.sealed_tokens))
        parents = () if record.commit_id is None else (record.commit_id,)
        commit = context.commits.store(Commit(metarange_id=applied.metarange_id, parents=parents, generation=9))
        return attrs.evolve(record, commit_id=commit, sealed_tokens=())

    update = context.branches.update(MAIN, switch)
    context.drop_tokens(MAIN, update.before, update.after)
    return Skipped("planted")


class CompactorOfSealedOnly(Compactor):
    """Its last step compares the sealed tokens, as the proposal asks for, and not HEAD."""

    def _swap(self, branch: str, sealed: BranchRecord, result: MetaRangeId | None) -> BranchUpdate:
        def swapped(record: BranchRecord) -> BranchRecord | None:
            if record.sealed_tokens != sealed.sealed_tokens:
                return None
            return attrs.evolve(record, sealed_tokens=(), compacted_metarange_id=result)

        return self._context.branches.update(branch, swapped)


def compact_comparing_sealed_only(world: World, actor: str, noted: HistoryOperation) -> Any:
    context = world.contexts[actor]
    return CompactorOfSealedOnly(context).run(context.branches.read(MAIN), budget=Budget(), observer=Observer())


def hard_reset_keeping_tokens(world: World, actor: str, noted: HistoryOperation) -> Any:
    """HEAD moves and the compacted metarange is cleared, but tokens stay (ResetHard of lakeFS)."""
    noted.write(b"a", b"0")
    world.contexts[actor].branches.update(
        MAIN, lambda record: attrs.evolve(record, commit_id=world.first_commit, compacted_metarange_id=None))
    return Skipped("planted")


def put_if_without_write_id(world: World, actor: str, noted: HistoryOperation) -> str:
    """A conditional put that takes its own value, sealed meanwhile, for somebody else's."""
    noted.write(K, b"I")
    context = world.contexts[actor]
    while True:
        record = context.branches.read(MAIN).record
        place = BranchView.of(context, MAIN, record).find(K)
        if place.record is not None:
            noted.writes.clear()
            return "refused"
        try:
            context.tokens.set_if(record.staging_token, K, Staged(Record.of(b"I")), place.predicate)
        except (PredicateFailed, OutcomeUnknown):
            continue
        if context.branches.read(MAIN).record.staging_token == record.staging_token:
            return "written"


def cleanup_of_sealed(world: World, actor: str, noted: HistoryOperation) -> Any:
    """A cleanup that takes sealed tokens for dropped ones."""
    context = world.contexts[actor]
    for token in context.branches.read(MAIN).record.sealed_tokens:
        context.tokens.mark_dropped({token: MAIN})
        context.tokens.remove_some(token, 1000)
    return Skipped("planted")


PLANTED: dict[str, tuple[str, str, Act, list[str]]] = {
    # what: (setup, operation, planted rule, other actor's setup of operations)
    "read without a second look, commit": ("sealed", "get", without_second_look, ["commit", "cleanup"]),
    "read without a second look, compaction": ("sealed", "get", without_second_look, ["compact", "cleanup"]),
    "delete shortcut, commit": ("staged", "delete", delete_with_shortcut, ["commit"]),
    "delete shortcut, compaction": ("staged", "delete", delete_with_shortcut, ["compact"]),
    "put without a second look, commit": ("staged", "put", put_without_second_look, ["commit"]),
    "put without a second look, compaction": ("staged", "put", put_without_second_look, ["compact"]),
    "reset_key without a second look": ("staged", "reset_key", reset_key_without_second_look, ["compact"]),
    "reset_prefix in the old token": ("staged", "reset_prefix", reset_prefix_in_old_token, ["compact"]),
    "hard reset that clears nothing": ("compacted", "hard_reset", hard_reset_without_clearing, ["get"]),
    "merge that ignores compactions": ("clean", "merge", merge_without_second_look, ["put", "compact"]),
    "commit that ignores compactions": ("staged", "commit", commit_on_head, ["compact"]),
    "put_if without a write id": ("clean", "put_if", put_if_without_write_id, ["compact"]),
    "cleanup of sealed tokens": ("sealed", "cleanup", cleanup_of_sealed, ["get"]),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_mistake_is_found(what: str) -> None:
    setup, operation, rule, others = PLANTED[what]
    with pytest.raises(InterleavingFailed) as failed:
        explore_programs(setup, [operation], others, rules={operation: rule})
    assert failed.value.schedule
    assert isinstance(failed.value.error, AssertionError | TooManyTries), failed.value
    explore_programs(setup, [operation], others)  # the real one passes


def test_a_compaction_that_compares_sealed_tokens_alone_is_found() -> None:
    """Together with a hard reset that leaves the tokens as they are; either one alone would do (check 13)."""
    rules: dict[str, Act] = {"compact": compact_comparing_sealed_only, "hard_reset": hard_reset_keeping_tokens}
    with pytest.raises(InterleavingFailed):
        explore_programs("staged", ["compact"], ["hard_reset"], rules=rules)


def test_a_planted_mistake_is_found_at_random_too() -> None:
    actors = actors_of(["delete"], ["commit"], ["cleanup"], rules={"delete": delete_with_shortcut})
    with pytest.raises(InterleavingFailed):
        sample_schedules(actors, world_of("staged", actors), check, schedules=500, random=Random(3))
