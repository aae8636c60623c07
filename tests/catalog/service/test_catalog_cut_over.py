# SPDX-License-Identifier: Apache-2.0
"""A cut whose answer is lost, over which another node has cut before anybody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from compactlib.catalog.log import keys
from compactlib.kv import Condition, Delete, MemoryStore, OutcomeUnknown, Put
from compactlib.outcome import Done, Failed
from tests.catalog.services import cut, grown, service_in
from tests.harness.catalog_logs import sound


class LostOnce(MemoryStore):
    """The answer to a cut is lost, and something happens before anybody looks."""

    then: Callable[[], object] | None = None

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        """See `KVStore.transact`."""
        listed, then = list(puts), self.then
        super().transact(conditions, listed, deletes)
        if then is not None and any(put.key == keys.EARLIEST for put in listed):
            self.then = None
            then()
            raise OutcomeUnknown(operation="transact", path="the store", detail="no answer")


def test_it_is_not_said_to_have_changed_nothing() -> None:
    """Once, it was: the snapshot that it had written was gone by then."""
    store = LostOnce()
    mine = grown(service_in(store), 8)
    other = service_in(store)
    store.then = lambda: cut(other, 6)
    outcome = cut(mine, 4)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, OutcomeUnknown)
    assert outcome.changed == "unknown"
    assert mine.poll() == 0
    assert mine.history.earliest == 6
    sound(mine)


def test_one_whose_snapshot_is_still_there_is_done() -> None:
    store = LostOnce()
    mine = grown(service_in(store), 8)
    store.then = mine.pins.all
    assert isinstance(cut(mine, 4), Done)
    sound(mine)
