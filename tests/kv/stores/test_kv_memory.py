# SPDX-License-Identifier: Apache-2.0
"""The store in memory passes the conformance kit, with predicates of both kinds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from sortedcontainers import SortedList

from compactlib.kv import Delete, KVStore, MemoryStore, Put
from compactlib.kv.errors import TooLarge
from compactlib.kv.store import KVLimits
from compactlib.testing.interrupts import Interrupted, interruptions


def test_a_predicate_that_is_a_version_never_holds_again() -> None:
    by_version, by_value = MemoryStore(), MemoryStore(predicates="value")
    for store, holds in ((by_version, False), (by_value, True)):
        store.set(b"p", b"k", b"v1")
        predicate = store.get(b"p", b"k").predicate
        store.delete(b"p", b"k")
        store.set(b"p", b"k", b"v1")
        assert (store.get(b"p", b"k").predicate == predicate) is holds


def test_its_limits_can_be_set() -> None:
    limits = KVLimits(max_partition_bytes=1, max_key_bytes=2, max_value_bytes=3, max_transact=1, max_get_many=1)
    store = MemoryStore(limits=limits)
    store.set(b"p", b"kk", b"vvv")
    with pytest.raises(TooLarge, match=r"a value of 4 bytes was given, this store takes at most 3"):
        store.set(b"p", b"k", b"vvvv")
    assert store.limits is limits
    assert repr(store) == "MemoryStore(1 keys in 1 partitions)"


def test_an_audit_finds_a_version_given_out_twice() -> None:
    store = MemoryStore()
    store.set(b"p", b"a", b"1")
    store._partitions[b"p"][b"b"] = store.get(b"p", b"a")  # noqa: SLF001
    with pytest.raises(AssertionError, match="two keys share one version"):
        store.audit()


def test_a_transaction_that_is_interrupted_is_carried_out_whole_or_not() -> None:
    def after(place: int | None) -> tuple[int, list[tuple[bytes, bytes]]]:
        store = MemoryStore()
        store.set(b"p", b"1", b"old")
        store.set(b"p", b"3", b"old")
        with Interrupted(place or 0) as interrupted, contextlib.suppress(KeyboardInterrupt):
            if place is not None:
                store.transact(puts=[Put(b"p", b"1", b"new"), Put(b"q", b"2", b"new")], deletes=[Delete(b"p", b"3")])
        store.audit()
        return interrupted.places, [(entry.key, entry.value) for name in (b"p", b"q") for entry in store.scan(name)]

    untouched, (places, whole) = after(None)[1], after(0)
    ended = [after(place)[1] for place in range(1, places + 1)]
    assert all(held in (untouched, whole) for held in ended)
    assert untouched in ended


@pytest.mark.parametrize("act", [
    lambda store: store.set(b"p", b"5", b"new"), lambda store: store.set(b"p", b"4", b"new"),
    lambda store: store.delete(b"p", b"4"), lambda store: store.set(b"q", b"5", b"new"),
    lambda store: store.delete(b"alone", b"1")])
def test_a_change_that_is_interrupted_anywhere_leaves_a_store_that_can_be_scanned(
        act: Callable[[KVStore], object], monkeypatch: pytest.MonkeyPatch) -> None:
    # Its lists of keys are cut and put together at these few.
    monkeypatch.setattr(SortedList, "DEFAULT_LOAD_FACTOR", 2)

    def contents(store: KVStore) -> list[tuple[bytes, bytes]]:
        return [(entry.key, entry.value) for name in (b"p", b"q", b"alone") for entry in store.scan(name)]

    def store_with_keys() -> MemoryStore:
        store = MemoryStore()
        for key in b"0246789":
            store.set(b"p", bytes([key]), b"old")
        store.set(b"alone", b"1", b"old")
        return store

    whole = store_with_keys()
    act(whole)
    for interrupted in interruptions(lambda: act(store_with_keys()), 1_000):
        store = store_with_keys()
        with contextlib.suppress(KeyboardInterrupt), interrupted:
            act(store)
        store.audit()
        assert contents(store) in (contents(store_with_keys()), contents(whole)), interrupted.where
        store.set(b"p", b"3", b"new")
        store.audit()
