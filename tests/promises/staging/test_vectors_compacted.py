# SPDX-License-Identifier: Apache-2.0
"""Cases with known answers about the reads, commits and resets of a branch that was compacted.

`test_vectors_compaction.py` has the cases of the compaction itself. They run on every store, as
`test_vectors_branch.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactlib.kv import MemoryStore
from compactlib.staging import Branch, DirtyBranch, Record, SplitRule
from tests.harness.staging_world import (
    StagingWorld as World,
    committed,
    contents,
    diff,
    ended,
    head_contents,
    missing,
    sigma,
)

pytestmark = pytest.mark.usefixtures("backend")


def test_a_compacted_branch_reads_as_before() -> None:
    _, main = sigma()
    assert main.record().sealed_tokens == ()
    assert contents(main) == {"b": "2", "c": "3"}
    assert missing(main, b"a")
    assert head_contents(main) == {"a": "1", "b": "2"}
    assert diff(main) == ["a removed 1->", "c added ->3"]


def test_a_commit_after_a_compaction_writes_nothing_and_clears_it() -> None:
    world, main = sigma()
    compacted = main.record().compacted_metarange_id
    stats = committed(main.commit("after"))
    assert (stats.added, stats.changed, stats.removed, stats.ranges_written) == (1, 0, 1, 0)
    assert head_contents(main) == {"b": "2", "c": "3"}
    assert (main.record().compacted_metarange_id, diff(main)) == (None, [])
    assert world.repo.commit(stats.commit_id).metarange_id == compacted


def test_deleting_a_compacted_tombstone_again_is_no_other_difference() -> None:
    world, main = sigma()
    main.delete(b"a")
    assert diff(main) == ["a removed 1->", "c added ->3"]
    world.compact()
    assert diff(main) == ["a removed 1->", "c added ->3"]


def test_changes_above_a_compaction_are_counted_against_head() -> None:
    world, main = sigma()
    first = main.record().compacted_metarange_id
    main.put(b"d", b"4")
    world.compact()
    assert main.record().compacted_metarange_id != first
    assert contents(main) == {"b": "2", "c": "3", "d": "4"}
    assert diff(main) == ["a removed 1->", "c added ->3", "d added ->4"]


def test_a_branch_that_was_emptied_stays_empty() -> None:
    world = World()
    main = world.branch({"a": "1"})
    main.delete(b"a")
    world.compact()
    assert main.record().compacted_metarange_id is not None
    assert (contents(main), diff(main)) == ({}, ["a removed 1->"])
    assert missing(main, b"a")
    assert committed(main.commit("empty")).removed == 1
    assert head_contents(main) == {}


@pytest.mark.parametrize("head", [None, {}])
def test_a_branch_without_a_head(head: dict[str, str | None] | None) -> None:
    world = World()
    main = world.branch(head)
    main.put(b"x", b"1")
    world.compact()
    assert diff(main) == ["x added ->1"]
    assert committed(main.commit("first")).added == 1
    assert head_contents(main) == {"x": "1"}


def test_a_compacted_branch_is_read_by_another_area() -> None:
    world, main = sigma()
    again = World(world.store, world.objects, seed=2).repo.branch("main")
    assert again.record() == main.record()
    assert contents(again) == {"b": "2", "c": "3"}


def test_ten_thousand_tombstones_before_one_key(backend: str) -> None:
    """Over a network the same shape with fewer."""
    world = World()
    count = 10_000 if backend == "memory" else 1_000 if backend == "sqlite" else 100
    keys = [b"a/%05d" % number for number in range(count)]
    main = world.branch({key.decode(): "x" for key in keys})
    for start in range(0, len(keys), 1000):
        main.delete_many(keys[start:start + 1000])
    main.put(b"z/1", b"1")
    before = main.list(limit=1)
    assert (before.keys, before.tombstones) == ((b"z/1",), count)
    assert before.scanned >= count
    world.compact()
    world.store.operations.clear()
    after = main.list(limit=1)
    assert (after.keys, after.tombstones) == ((b"z/1",), 0)
    assert after.scanned <= 2
    assert sum(operation.kind == "scan" for operation in world.store.operations) == 1
    world.token_reads()
    assert missing(main, keys[5])
    assert world.token_reads() == 1


def test_a_branch_from_a_compacted_one_has_head_s_view() -> None:
    world, main = sigma()
    other = world.repo.create_branch("x", "main")
    assert contents(other) == {"a": "1", "b": "2"}
    assert other.record().compacted_metarange_id is None
    assert other.record().commit_id == main.record().commit_id


def moves(world: World) -> dict[str, Callable[[Branch], object]]:
    """Every operation that moves HEAD, none of which may see the branch dirty."""
    source = world.branch({"m": "1"}, name="source")
    head = source.record().commit_id
    assert head is not None
    return {
        "merge": lambda main: main.merge("source"),
        "revert": lambda main: main.revert("main"),
        "cherry_pick": lambda main: main.cherry_pick(head),
        "commit_metarange": lambda main: main.commit_metarange(world.metarange({"i": "1"}), "import"),
        "hard_reset": lambda main: main.hard_reset(head),
    }


MOVES = ["merge", "revert", "cherry_pick", "commit_metarange", "hard_reset"]


@pytest.mark.parametrize("name", MOVES)
def test_moves_of_head_refuse_a_compacted_branch_with_changes(name: str) -> None:
    world, main = sigma()
    before = main.record()
    with pytest.raises(DirtyBranch):
        moves(world)[name](main)
    assert main.record() == before


@pytest.mark.parametrize("name", MOVES)
def test_moves_of_head_clear_a_compaction_that_changes_nothing(name: str) -> None:
    world = World()
    main = world.branch({"a": "1", "b": "2"}, compacted={"a": "1", "b": "2"})
    committed(moves(world)[name](main))
    assert main.record().compacted_metarange_id is None
    assert contents(main) == head_contents(main)


def test_a_reset_over_a_compaction() -> None:
    world, main = sigma()
    assert not main.reset().is_empty
    assert (diff(main), main.record().compacted_metarange_id) == ([], None)
    assert contents(main) == {"a": "1", "b": "2"}
    world.repo.audit()


def test_resetting_a_key_that_only_the_compaction_has() -> None:
    _, main = sigma()
    main.reset_key(b"c")
    assert missing(main, b"c")
    assert diff(main) == ["a removed 1->"]


def test_a_hard_reset_over_a_compaction() -> None:
    world, main = sigma()
    target = world.branch({"t": "1"}, name="target")
    with pytest.raises(DirtyBranch):
        main.hard_reset("target")
    committed(main.hard_reset("target", discard=True))
    assert contents(main) == head_contents(main) == {"t": "1"}
    assert main.record().compacted_metarange_id is None
    assert main.record().commit_id == target.record().commit_id


def test_callers_give_no_identities() -> None:
    """Equal identity with other data cannot arise: the identity is the digest of the data. So G3 holds of the data."""
    world = World()
    main = world.branch({"a": "1"})
    main.put(b"a", b"2")
    before = main.get(b"a")
    world.compact()
    assert main.get(b"a") == before == Record.of(b"2")


# ----------------------------------------------------------------------- the outcome


def test_a_compaction_that_equals_head_is_no_change_and_released() -> None:
    main = World().branch({"a": "1"}, compacted={"a": "1"})
    assert ended(main.commit("nothing")) == "no_changes"
    assert main.record().compacted_metarange_id is None


def test_staged_changes_that_undo_a_compaction_are_no_change() -> None:
    main = World().branch({"a": "1"}, compacted={"a": "2", "b": "3"}, staged={"a": "1", "b": None})
    assert diff(main) == []
    assert ended(main.commit("nothing")) == "no_changes"
    assert (main.record().compacted_metarange_id, main.record().sealed_tokens) == (None, ())
    assert contents(main) == {"a": "1"}


def test_the_loser_of_two_commits_learns_its_changes_are_committed() -> None:
    """The second commit runs as a whole at the moment when the first one has sealed."""
    world = World()
    main = world.branch({}, staged={"a": "1"})
    winner: list[object] = []
    other = World(world.store, world.objects, seed=9)
    other.hooks.before_create = lambda: winner.append(main.commit("first"))
    outcome = other.repo.branch("main").commit("second")
    first = committed(winner[0])
    assert ended(outcome) == "already_committed"
    assert first.commit_id == main.record().commit_id
    assert len(list(main.log())) == 2


def test_a_commit_after_a_hard_reset_does_not_report_success() -> None:
    world = World()
    main = world.branch({"a": "1"})
    first = main.record().commit_id
    assert first is not None
    main.put(b"b", b"2")
    main.commit("second")
    main.put(b"c", b"3")
    other = World(world.store, world.objects, seed=9)
    world.hooks.before_create = lambda: committed(other.repo.branch("main").hard_reset(first, discard=True))
    assert ended(main.commit("third")) == "no_changes"
    assert main.record().commit_id == first
    assert contents(main) == {"a": "1"}


def test_a_seal_in_front_does_not_make_a_commit_build_again() -> None:
    """The fast path: a token sealed during the commit stays sealed."""
    world = World()
    main = world.branch({}, staged={"a": "1"})

    def sealed_meanwhile() -> None:
        main.put(b"late", b"1")
        world.seal(main)

    world.hooks.before_create = sealed_meanwhile
    assert committed(main.commit("a")).rebuilds == 0
    assert head_contents(main) == {"a": "1"}
    assert (len(main.record().sealed_tokens), diff(main)) == (1, ["late added ->1"])


def test_a_commit_is_built_again_after_a_concurrent_compaction() -> None:
    world = World()
    main = world.branch({"z": "0"}, staged={"a": "1"})
    world.hooks.before_create = world.compact
    stats = committed(main.commit("a"))
    assert (stats.added, stats.rebuilds) == (1, 1)
    assert head_contents(main) == contents(main) == {"a": "1", "z": "0"}
    assert main.record().compacted_metarange_id is None


@pytest.mark.parametrize("predicates", ["version", "value"])
def test_everything_works_on_a_store_that_compares_values(predicates: str) -> None:
    world, main = sigma(World(MemoryStore(predicates=predicates)))  # type: ignore[arg-type]
    main.put_if(b"n", b"1", None)
    main.commit("one")
    world.branch({"m": "1"}, name="other")
    main.merge("other", strategy="source_wins")
    assert contents(main) == {"b": "2", "c": "3", "m": "1", "n": "1"}


def test_a_diff_over_a_compaction_opens_the_old_and_the_new_range() -> None:
    world = World(rule=SplitRule(raggedness=5))
    main = world.branch({f"k{number:03}": "x" * 30 for number in range(100)})
    ranges = world.committed.ranges_of(main.head().metarange_id)
    assert len(ranges) > 5
    middle = next(one for one in ranges[1:-1] if one.count >= 3)
    victim = next(key for key, _ in main.head().records(b"k") if key > middle.min_key)
    main.delete(victim)
    world.compact()
    again = World(world.store, world.objects, seed=3, rule=world.committed.rule)
    assert diff(again.repo.branch("main")) == [f"{victim.decode()} removed {'x' * 30}->"]
    assert len({key for key in again.hooks.keys_read if "/ranges/" in f"/{key}"}) == 2
