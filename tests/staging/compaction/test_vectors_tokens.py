# SPDX-License-Identifier: Apache-2.0
"""Cases with known answers about tokens: what is in the staged one, and which of them wait for a cleanup.

What a branch shows in these cases is in `tests/promises/staging`.
"""

from __future__ import annotations

from tests.staging.world import World, committed, sigma


def test_what_was_put_and_deleted_leaves_a_tombstone() -> None:
    world = World()
    main = world.branch({})
    main.put(b"c", b"3")
    main.delete(b"c")
    assert [(key, staged.record) for key, staged in world.context.tokens.scan(main.record().staging_token)] == [
        (b"c", None)]


def test_a_commit_drops_the_token_that_it_took_in() -> None:
    world = World()
    main = world.branch({"a": "1", "b": "2"}, staged={"a": "9", "b": None, "c": "3"})
    before = main.record()
    committed(main.commit("all"))
    assert [mark.token for mark in world.context.tokens.dropped()] == [before.staging_token]


def test_a_compaction_leaves_an_empty_token() -> None:
    world, main = sigma()
    record_now = main.record()
    assert record_now.sealed_tokens == ()
    assert world.context.tokens.is_empty(record_now.staging_token)


def test_deleting_a_compacted_branch_queues_its_tokens() -> None:
    world, main = sigma()
    tokens = set(main.record().tokens)
    world.repo.delete_branch("main")
    assert tokens <= {mark.token for mark in world.context.tokens.dropped()}
    world.repo.audit()
