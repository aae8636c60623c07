# SPDX-License-Identifier: Apache-2.0
"""How many pins there may be: exactly so many, whoever takes them, and without a look at all of them for each."""

from __future__ import annotations

import random
from typing import Any

import pytest

from compactlib.catalog import CatalogService
from compactlib.catalog.sense import pins as module
from compactlib.catalog.sense.pins import Pins
from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore
from tests.catalog.services import grown, service_in


class Counting(MemoryStore):
    """Counts the entries that are listed."""

    listed = 0

    def scan(self, partition: bytes, *arguments: Any, **options: Any) -> Any:
        """See `KVStore.scan`."""
        found = list(super().scan(partition, *arguments, **options))
        self.listed += len(found)
        return super().scan(partition, *arguments, **options)


def taken(service: CatalogService, store: Counting, count: int) -> int:
    """How many entries are listed while so many pins are taken."""
    before = store.listed
    for number in range(count):
        service.pins.pin(f"job {before} {number}", 3, service.history, ttl_seconds=60)
    return store.listed - before


def test_a_pin_does_not_look_at_all_others() -> None:
    store = Counting()
    service = grown(service_in(store), 5)
    taken(service, store, 1)
    assert taken(service, store, 200) == 0


@pytest.mark.parametrize("seed", range(20))
def test_there_are_never_more_pins_than_may_be_and_never_fewer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, most = random.Random(seed), 6
    monkeypatch.setattr(module, "MAX_PINS", most)
    service = grown(service_in(), 5)
    takers = [Pins(service.log, service.clock) for _ in range(3)]
    held: set[str] = set()
    for _ in range(120):
        pins, owner = rng.choice(takers), f"job {rng.randrange(9)}"
        if rng.random() < 0.3:
            pins.release(owner)
            held.discard(owner)
        elif owner not in held and len(held) == most:
            with pytest.raises(InvalidInput, match="6 pins are held"):
                pins.pin(owner, 3, service.history, ttl_seconds=60)
        else:
            pins.pin(owner, 3, service.history, ttl_seconds=60)
            held.add(owner)
        assert {pin.owner for pin in pins.all()} == held


def test_a_pin_that_others_take_meanwhile_leaves_no_room_for_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[str] = []

    class Shared(MemoryStore):
        def transact(self, *given: Any, **named: Any) -> Any:
            if ahead:
                other.pin(ahead.pop(), 3, service.history, ttl_seconds=60)
            return super().transact(*given, **named)

    monkeypatch.setattr(module, "MAX_PINS", 3)
    service = grown(service_in(Shared()), 5)
    pins, other = (Pins(service.log, service.clock) for _ in range(2))
    for owner in ("a", "b"):
        pins.pin(owner, 3, service.history, ttl_seconds=60)
    ahead.append("c")
    with pytest.raises(InvalidInput, match="3 pins are held"):
        pins.pin("d", 3, service.history, ttl_seconds=60)
    assert [pin.owner for pin in pins.all()] == ["a", "b", "c"]
