# SPDX-License-Identifier: Apache-2.0
"""Batches of keys: few requests, and the known part of a failed batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import MemoryStore, OutcomeUnknown
from compactlib.kv.batches import change_many
from compactlib.kv.errors import TooLarge
from compactlib.kv.store import KVLimits
from compactlib.testing import Choices, Request, StoreInFront, explore
from compactlib.testing.failing import Failing


@pytest.mark.parametrize("most", [3, 1])
def test_failed_batch_names_the_written_keys(most: int) -> None:
    before = {b"%d" % number: b"old" for number in range(7)}
    wanted = {key: None if key == b"3" else b"new" for key in [*before, b"7"]}

    def run(choices: Choices) -> None:
        store, failing = MemoryStore(limits=KVLimits(100, 100, 100, most)), Failing(choices)
        change_many(store, b"p", before)
        failed, certain, begun = False, True, False
        try:
            change_many(StoreInFront(store, failing), b"p", wanted)
        except CompactlibError as error:
            failed, begun = True, isinstance(error.__cause__, CompactlibError)
            certain = not isinstance(error.__cause__ or error, OutcomeUnknown)
            assert isinstance(error, OutcomeUnknown) or not begun
        failing.settle()
        found = {entry.key: entry.value for entry in store.scan(b"p")}
        landed = [found.get(key) == wanted[key] for key in wanted]
        if certain:
            # A part reported as failed has changed nothing, and later parts were not sent.
            assert landed == sorted(landed, reverse=True)
            assert all(landed) if not failed else any(landed) == begun
        change_many(store, b"p", wanted)
        assert {entry.key: entry.value for entry in store.scan(b"p")} == {
            key: value for key, value in wanted.items() if value is not None}

    assert explore(run) > 18


@pytest.mark.parametrize(("most", "requests"), [(30, 4), (100, 1), (1, 100)])
def test_batch_takes_few_requests(most: int, requests: int) -> None:
    made: list[Request] = []

    def step(request: Request, act: Callable[[], Any]) -> Any:
        made.append(request)
        return act()

    store = StoreInFront(MemoryStore(limits=KVLimits(100, 100, 100, most)), step)
    values = {b"%d" % number: b"v%d" % number for number in range(100)}
    change_many(store, b"p", values)
    found = store.get_many([(b"p", key) for key in values])
    assert [each.value for each in found.values()] == list(values.values())
    change_many(store, b"p", dict.fromkeys(values))
    assert len(made) == 3 * requests
    assert not list(store.scan(b"p"))


def test_a_batch_with_a_key_that_is_refused_writes_nothing() -> None:
    """Also if the key would be in its last request."""
    store = MemoryStore(limits=KVLimits(100, 100, 100, 2))
    with pytest.raises(InvalidInput):
        change_many(store, b"p", {b"1": b"v", b"2": b"v", b"3": None, b"": b"v"})
    assert not list(store.scan(b"p"))


def test_a_batch_is_split_by_bytes_too() -> None:
    """Each request keeps within the limit of a transaction; a single write always does."""
    store = MemoryStore(limits=KVLimits(100, 100, 100, 50, max_transact_bytes=500))
    with pytest.raises(TooLarge, match="a transaction of 5"):
        store.transact(changes={(b"p", b"%d" % number): bytes(100 * (number < 3)) for number in range(4)})
    made: list[Request] = []

    def step(request: Request, act: Callable[[], Any]) -> Any:
        made.append(request)
        return act()

    change_many(StoreInFront(store, step), b"p", {b"%d" % number: bytes(100) for number in range(7)})
    assert len(made) == 3
    assert len(list(store.scan(b"p"))) == 7
