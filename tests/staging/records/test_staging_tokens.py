# SPDX-License-Identifier: Apache-2.0
"""Staging tokens: cases with known answers, the register, and the order of merged tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.kv import MemoryStore
from compactlib.outcome import Done, Skipped
from compactlib.staging import Record
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.layers import MergedTokens
from compactlib.staging.names import StagingToken, repository_partition
from compactlib.staging.staged import Staged
from compactlib.staging.tokens import StagingTokens
from tests.harness.faulty_store import FaultyStore, KVCrash, KVFault
from tests.staging.world import World, record

VALUE = Staged(record("v"))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(page_size=10)


@pytest.fixture
def tokens(store: MemoryStore) -> StagingTokens:
    return StagingTokens(store, repository_partition("main"), random.Random(1), ManualClock(5.0))


@pytest.fixture
def token(tokens: StagingTokens) -> StagingToken:
    return tokens.draw()


def keys(tokens: StagingTokens, token: StagingToken) -> list[bytes]:
    return [key for key, _ in tokens.scan(token)]


def staged(tokens: StagingTokens, token: StagingToken, key: bytes) -> Staged | None:
    found = tokens.get(token, key)
    return None if found is None else found.staged


def test_a_tombstone_is_an_entry(tokens: StagingTokens, token: StagingToken) -> None:
    tokens.set(token, b"a", Staged(None))
    assert staged(tokens, token, b"a") == Staged(None)
    assert list(tokens.scan(token)) == [(b"a", Staged(None))]
    assert staged(tokens, token, b"b") is None


@pytest.mark.parametrize("wrong", [Record(cast("Any", None), b"d"), Record(b"i", cast("Any", "text")),
                                   cast("Any", b"no record")])
def test_what_has_no_identity_is_refused_and_the_old_value_stays(tokens: StagingTokens, token: StagingToken,
                                                                    wrong: Record) -> None:
    tokens.set(token, b"a", VALUE)
    with pytest.raises(InvalidInput):
        tokens.set(token, b"a", Staged(wrong))
    assert staged(tokens, token, b"a") == VALUE


def test_empty_data_is_a_value(tokens: StagingTokens, token: StagingToken) -> None:
    tokens.set(token, b"a", Staged(Record(b"i", b"")))
    assert staged(tokens, token, b"a") == Staged(Record(b"i", b""))


def test_tokens_are_apart(tokens: StagingTokens) -> None:
    one, other = tokens.draw(), tokens.draw()
    tokens.set(one, b"a", VALUE)
    assert (keys(tokens, one), keys(tokens, other)) == ([b"a"], [])
    assert (tokens.is_empty(one), tokens.is_empty(other)) == (False, True)


def test_removing_a_token_leaves_another_alone(tokens: StagingTokens) -> None:
    one, other = tokens.draw(), tokens.draw()
    for number in range(1400):
        tokens.set(one, b"%04d" % number, VALUE)
        tokens.set(other, b"%04d" % number, VALUE)
    assert [tokens.remove_some(one, 1000) for _ in range(3)] == [1000, 400, 0]
    assert (len(keys(tokens, one)), len(keys(tokens, other))) == (0, 1400)


def dropped_token(world: World) -> StagingToken:
    main = world.branch(staged={f"k{number}": "x" for number in range(40)})
    token = main.record().staging_token
    main.reset()
    return token


def test_what_was_dropped_is_cleaned_up_once() -> None:
    world = World()
    token = dropped_token(world)
    cleaner = TokenCleaner(world.context, grace_seconds=0)
    outcome = cleaner.run()
    assert isinstance(outcome, Done)
    assert (outcome.stats.tokens_removed, outcome.stats.entries_removed) == (1, 40)
    assert (keys(world.context.tokens, token), list(world.context.tokens.dropped())) == ([], [])
    assert isinstance(cleaner.run(), Skipped)


def test_a_cleanup_that_died_half_way_is_finished_by_the_next() -> None:
    world = World(MemoryStore(limits=attrs.evolve(MemoryStore().limits, max_transact=4)))
    token = dropped_token(world)
    crashing = FaultyStore(world.store, lambda operation: (
        KVFault.CRASH_AFTER if operation.name == "transact" and operation.key == b"k2" else None))
    with pytest.raises(KVCrash):
        TokenCleaner(World(crashing, world.objects).context, grace_seconds=0).run()
    assert 0 < len(keys(world.context.tokens, token)) < 40
    TokenCleaner(world.context, grace_seconds=0).run()
    assert (keys(world.context.tokens, token), list(world.context.tokens.dropped())) == ([], [])


def test_a_token_is_in_the_register_before_it_is_used(tokens: StagingTokens) -> None:
    token = tokens.issue("main")
    (mark,) = tokens.registered()
    assert (mark.token, mark.branch, mark.at) == (token, "main", 5.0)
    tokens.mark_dropped({token: "main"})
    assert [mark.token for mark in tokens.dropped()] == [token]
    tokens.forget([token])
    assert [*tokens.registered(), *tokens.dropped()] == []


def test_damage_is_named_and_never_an_answer(store: MemoryStore, tokens: StagingTokens, token: StagingToken) -> None:
    tokens.set(token, b"a", VALUE)
    store.set(token.encode(), b"a", store.get(token.encode(), b"a").value[:-1])
    with pytest.raises(CorruptData, match="key b'a' of staging token"):
        tokens.get(token, b"a")
    with pytest.raises(CorruptData):
        list(tokens.scan(token))


layers = st.lists(st.dictionaries(st.binary(min_size=1, max_size=3), st.none() | st.just("v"), max_size=8), max_size=4)


@given(layers, st.binary(max_size=2), st.binary(max_size=1))
def test_merged_tokens_give_the_newest_entry_of_each_key(newest_first: list[Mapping[bytes, str | None]], start: bytes,
                                                         prefix: bytes) -> None:
    tokens = StagingTokens(MemoryStore(page_size=2), b"marks", random.Random(1), ManualClock())
    names = [tokens.draw() for _ in newest_first]
    expected: dict[bytes, Staged] = {}
    for number, (name, layer) in reversed(list(enumerate(zip(names, newest_first, strict=True)))):
        for key, value in layer.items():
            entry = Staged(None if value is None else record(f"{value}{number}"))
            tokens.set(name, key, entry)
            expected[key] = entry
    wanted = [(key, entry) for key, entry in sorted(expected.items()) if key >= start and key.startswith(prefix)]
    merged = MergedTokens(tokens, names, start, prefix=prefix, page_size=1)
    assert list(merged) == wanted
    assert merged.scanned <= sum(map(len, newest_first))
    merged.seek(b"")
    assert list(merged) == [(key, entry) for key, entry in sorted(expected.items()) if key.startswith(prefix)]


@pytest.mark.parametrize("failing", range(12))
def test_merged_tokens_go_on_after_an_error_with_the_same_entry(failing: int) -> None:
    reads = iter(range(100))
    store = FaultyStore(MemoryStore(page_size=1),
                        lambda one: KVFault.FAIL if one.name == "scan" and next(reads) == failing else None)
    tokens = StagingTokens(store, b"marks", random.Random(1), ManualClock())
    newest, older = tokens.draw(), tokens.draw()
    for key in (b"a", b"b", b"c"):
        tokens.set(older, key, Staged(record("old")))
        tokens.set(newest, key, Staged(None))
    merged = MergedTokens(tokens, [newest, older])
    found: list[Any] = []
    while len(found) < 4:
        try:
            found.append(next(merged, None))
        except StorageError:
            continue
    assert found == [(key, Staged(None)) for key in (b"a", b"b", b"c")] + [None]


def test_write_ids_differ_and_are_never_zero(tokens: StagingTokens) -> None:
    drawn = {tokens.draw_write_id() for _ in range(100)}
    assert len(drawn) == 100
    assert bytes(8) not in drawn
    assert attrs.evolve(VALUE, write_id=drawn.pop()) != VALUE
