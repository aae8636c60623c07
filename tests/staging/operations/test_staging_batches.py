# SPDX-License-Identifier: Apache-2.0
"""Many keys of a branch take few requests, and what a batch of several requests leaves when it ends in the middle."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from compactlib.errors import CompactlibError
from compactlib.kv import KVStore, MemoryStore, MeteredStore, OutcomeUnknown, SlowDown, StoreFailed
from compactlib.kv.errors import PartlyWritten
from compactlib.outcome import Done
from compactlib.runtime import RecordingObserver
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.names import StagingToken
from tests.harness.backends import BACKENDS
from tests.harness.faulty_store import FaultyStore, KVCrash, KVFault, KVOperation
from tests.staging.world import World
from tests.tools.faults.kv_faults import KVRun, explore_kv_faults

KEYS = [b"%04d" % number for number in range(1000)]
MEMORY = MemoryStore().limits


def limited(transact: int, get_many: int = 0) -> MemoryStore:
    """A store that takes so many cells in one request."""
    return MemoryStore(limits=attrs.evolve(MEMORY, max_transact=transact, max_get_many=get_many))


def parts(keys: Sequence[bytes], limit: int) -> int:
    return math.ceil(len(keys) / max(limit, 1))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in ("memory", "sqlite") else pytest.mark.cluster)
                                  for name in BACKENDS])
def test_a_thousand_keys_take_five_requests_or_two_more_than_the_limits_say(name: str, tmp_path: Path) -> None:
    observer = RecordingObserver()
    store = MeteredStore(BACKENDS[name](tmp_path), observer, name="counted")
    world = World(store)
    branch = world.repo.create_branch("main")
    # What stands for DynamoDB copies its whole table for each transaction.
    keys = KEYS if name != "dynamodb" else KEYS[:250]

    def requests(work: Callable[[], object]) -> int:
        observer.counters.clear()
        work()
        return sum(count for (counter, _), count in observer.counters.items() if counter == "kv_requests")

    writes, reads = parts(keys, store.limits.max_transact), parts(keys, store.limits.max_get_many)
    assert requests(lambda: branch.put_many(dict.fromkeys(keys, b"v"))) <= writes + 2
    assert requests(lambda: branch.get_many(keys)) <= reads + 2
    branch.commit("first")
    branch.put_many(dict.fromkeys(keys[:100], b"w"))
    assert len(branch.get_many(keys)) == len(keys)
    assert requests(lambda: branch.delete_many(keys)) <= reads + writes + 2
    assert branch.get_many(keys) == {}
    tokens = branch.record().tokens
    branch.reset()

    def clean() -> None:
        outcome = TokenCleaner(world.context, grace_seconds=0).run()
        assert isinstance(outcome, Done)
        assert outcome.stats.entries_removed >= len(keys) * len(tokens)

    # Marks, branches, and the register at the end; for each token a page, its entries, and an empty page.
    dropped = len(list(world.context.tokens.dropped()))
    assert requests(clean) <= 3 + dropped * (writes + 2)
    if name in ("memory", "sqlite", "postgres"):
        assert (writes + 2, reads + 2, reads + writes + 2) == (3, 3, 4)
    store.close()


def test_a_read_of_many_keys_looks_into_all_sealed_tokens_at_once() -> None:
    world = World()
    branch = world.branch(staged={"a": "0", "b": "0"}, sealed=[{"a": "1", "c": "1", "d": None}, {"c": "2", "d": "2"}],
                          head={"e": "h", "c": "h"})
    before = len(world.store.operations)
    found = branch.get_many([b"a", b"b", b"c", b"d", b"e", b"f"])
    assert {key: record.data for key, record in found.items()} == {b"a": b"0", b"b": b"0", b"c": b"1", b"e": b"h"}
    assert [each.name for each in world.store.operations[before:]].count("get_many") == 2


def is_load(operation: KVOperation) -> bool:
    """Whether it writes to a token."""
    return operation.name == "transact" and operation.partition.startswith(b"stg-")


@pytest.mark.parametrize("fault", [KVFault.FAIL, KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST])
def test_a_batch_that_ends_in_the_middle_says_what_is_written_and_may_be_made_again(fault: KVFault) -> None:
    armed = [4]

    def choose(operation: KVOperation) -> KVFault | None:
        if is_load(operation) and armed:
            armed[0] -= 1
            if armed[0] == 0:
                armed.clear()
                return fault
        return None

    world = World(FaultyStore(limited(100, 100), choose))
    branch = world.repo.create_branch("main")
    with pytest.raises(PartlyWritten, match="300 of 1000 keys") as caught:
        branch.put_many(dict.fromkeys(KEYS, b"v"))
    assert (caught.value.written, caught.value.left) == (tuple(KEYS[:300]), 700)
    assert isinstance(caught.value.__cause__, StoreFailed)
    assert set(branch.get_many(KEYS)) == set(KEYS[:300 if fault is not KVFault.UNKNOWN_DONE else 400])
    branch.put_many(dict.fromkeys(KEYS, b"v"))
    assert len(branch.get_many(KEYS)) == 1000
    armed[:] = [4]
    with pytest.raises(PartlyWritten) as caught:
        branch.delete_many(KEYS)
    assert caught.value.written == tuple(KEYS[:300])
    branch.delete_many(KEYS)
    assert branch.get_many(KEYS) == {}


def test_a_store_that_asks_to_wait_is_not_sent_again_what_it_has() -> None:
    seen: list[KVOperation] = []

    def choose(operation: KVOperation) -> KVFault | None:
        if is_load(operation):
            seen.append(operation)
            return KVFault.SLOW_DOWN if len(seen) in (3, 4) else None
        return None

    world = World(FaultyStore(limited(100, 100), choose))
    branch = world.repo.create_branch("main")
    branch.put_many(dict.fromkeys(KEYS, b"v"))
    assert [operation.key for operation in seen] == [KEYS[at] for at in (0, 100, 200, 200, 200, *range(300, 1000, 100))]


def test_a_store_that_never_stops_asking_to_wait_does_not_pass_for_one_that_wrote_nothing() -> None:
    world = World(FaultyStore(limited(100, 100), lambda operation: (
        KVFault.SLOW_DOWN if is_load(operation) and operation.key >= KEYS[200] else None)))
    branch = world.repo.create_branch("main")
    with pytest.raises((PartlyWritten, SlowDown)) as caught:
        branch.put_many(dict.fromkeys(KEYS, b"v"))
    assert isinstance(caught.value, PartlyWritten)
    assert caught.value.written == tuple(KEYS[:200]) == tuple(branch.get_many(KEYS))


def test_what_a_commit_has_sealed_in_the_middle_is_written_again() -> None:
    """Keys that went into the old token may have come too late for the commit, so none of them counts as written."""
    for fault in (None, KVFault.FAIL):
        turn: list[Callable[[], object]] = []

        def choose(operation: KVOperation, turn: list[Callable[[], object]] = turn, fault: KVFault | None = fault,
                   ) -> KVFault | None:
            if operation.name == "transact" and operation.key == KEYS[300] and turn:
                turn.pop()()
                return fault
            return None

        world = World(FaultyStore(limited(100, 100), choose))
        branch = world.repo.create_branch("main")
        branch.put(b"other", b"o")
        turn.append(functools.partial(branch.commit, "in between"))
        if fault is None:
            branch.put_many(dict.fromkeys(KEYS, b"v"))
        else:
            with pytest.raises(PartlyWritten, match="0 of 1000 keys") as caught:
                branch.put_many(dict.fromkeys(KEYS, b"v"))
            assert caught.value.written == ()
            branch.put_many(dict.fromkeys(KEYS, b"v"))
        assert len(branch.get_many(KEYS)) == 1000


def test_a_reset_of_a_prefix_that_ends_in_the_middle_has_changed_nothing() -> None:
    failing: list[bool] = []
    world = World(FaultyStore(limited(100, 100), lambda operation: (
        KVFault.FAIL if failing and operation.name == "transact" and operation.key == KEYS[300] else None)))
    branch = world.repo.create_branch("main")
    branch.put_many(dict.fromkeys(KEYS, b"v"))
    failing.append(True)
    with pytest.raises(StoreFailed) as caught:
        branch.reset_prefix(b"0")
    assert not isinstance(caught.value, OutcomeUnknown)
    assert len(branch.get_many(KEYS)) == 1000
    failing.clear()
    branch.reset_prefix(b"0")
    assert branch.get_many(KEYS) == {}


def test_a_reset_of_a_prefix_writes_large_values_a_few_at_a_time() -> None:
    world = World()
    branch = world.repo.create_branch("main")
    keys, large = KEYS[:30], bytes(1 << 20)
    branch.put_many(dict.fromkeys(keys, large))
    branch.commit("large")
    branch.delete_many(keys)
    before = len(world.store.operations)
    branch.reset_prefix(b"0")
    firsts = [each.key for each in world.store.operations[before:] if each.name == "transact"]
    assert len(firsts) >= 3
    assert not branch.is_dirty()
    assert {record.data for record in branch.get_many(keys).values()} == {large}


@pytest.mark.parametrize("transact", [0, 1, 3])
@pytest.mark.parametrize("deletes", [False, True])
def test_whatever_a_batch_meets_the_branch_has_what_it_said(transact: int, deletes: bool) -> None:
    keys, batch = KEYS[:7], dict.fromkeys(KEYS[:7], b"new")

    def prepared() -> MemoryStore:
        store = limited(transact, transact)
        branch = World(store).repo.create_branch("main")
        branch.put_many(dict.fromkeys(keys, b"old"))
        return store

    def change(store: KVStore) -> None:
        branch = World(store).repo.branch("main")
        if deletes:
            branch.delete_many(keys)
        else:
            branch.put_many(batch)

    def check(store: KVStore, run: KVRun) -> None:
        branch = World(store).repo.branch("main")
        done = {} if deletes else batch

        def now() -> dict[bytes, bytes]:
            return {key: record.data for key, record in branch.get_many(keys).items()}

        found = now()
        written = run.error.written if isinstance(run.error, PartlyWritten) else keys if run.error is None else ()
        assert {key: found.get(key) for key in written} == {key: done.get(key) for key in written}
        if isinstance(run.error, CompactlibError) and not isinstance(run.error, OutcomeUnknown):
            assert found == dict.fromkeys(keys, b"old")
        assert run.error is None or isinstance(run.error, CompactlibError | KVCrash)
        change(store)
        assert now() == done

    assert explore_kv_faults(prepared, change, check).runs > 20


@pytest.mark.parametrize("transact", [0, 3])
def test_a_clean_up_in_parts_goes_on_after_a_crash_at_any_request(transact: int) -> None:
    used: set[StagingToken] = set()

    def prepared() -> MemoryStore:
        store = limited(transact, transact)
        branch = World(store).repo.create_branch("main")
        used.clear()
        for _ in range(2):
            branch.put_many(dict.fromkeys(KEYS[:7], b"old"))
            used.update(branch.record().tokens)
            branch.reset()
        return store

    def clean(store: KVStore) -> object:
        return TokenCleaner(World(store, seed=2).context, grace_seconds=0).run()

    def check(store: KVStore, run: KVRun) -> None:
        tokens = World(store).context.tokens
        findable = {mark.token for mark in [*tokens.registered(), *tokens.dropped()]}
        assert all(tokens.is_empty(token) for token in used - findable)
        clean(store)
        branch = World(store).repo.branch("main")
        assert [*tokens.dropped()] == []
        assert {mark.token for mark in tokens.registered()} == set(branch.record().tokens)
        assert all(tokens.is_empty(token) for token in used)

    explore_kv_faults(prepared, clean, check)
