# SPDX-License-Identifier: Apache-2.0
"""A snapshot whose answer was lost, and that comes into force only while the next one is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore, OutcomeUnknown, PredicateFailed
from compactlib.kv.snapshots import HEAD_KEY, Snapshot, SnapshotStore
from compactlib.kv.store import Predicate

if TYPE_CHECKING:
    from typing_extensions import Buffer

P = b"p"


class LateStore(MemoryStore):
    """The next head that is written gets no answer, and is there right before the one that follows it.

    Attributes:
        is_late: whether that is to come.
        meanwhile: called then as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_late = False
        self.meanwhile: Callable[[], object] | None = None

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        if key == HEAD_KEY and self.is_late:
            self.is_late, late = False, partial(super().set_if, partition, key, value, predicate)
            self.meanwhile = late
            raise OutcomeUnknown(operation="set_if", path="LateStore", detail="it comes later")
        if key == HEAD_KEY and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        super().set_if(partition, key, value, predicate)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_owner_does_not_take_its_own_snapshot_that_comes_late_for_another_process(is_first: bool) -> None:
    """It said that another process wrote one, and a scheduler's owner gave its store up."""
    store = LateStore()
    snapshots = SnapshotStore(store, P, clock=ManualClock(0.0))
    if not is_first:
        snapshots.save(1, b"one")
    store.is_late = True
    with pytest.raises(OutcomeUnknown):
        snapshots.save(5, b"five")
    snapshots.save(6, b"six")
    assert snapshots.load() == SnapshotStore(store, P).load() == Snapshot(6, b"six")
    snapshots.audit()
    snapshots.save(7, b"seven")
    assert len(list(store.scan(P, prefix=b"chunk/"))) == 1


def test_another_process_is_told_from_what_comes_late() -> None:
    store = LateStore()
    snapshots = SnapshotStore(store, P, clock=ManualClock(0.0))
    store.is_late = True
    with pytest.raises(OutcomeUnknown):
        snapshots.save(5, b"five")
    other = SnapshotStore(store, P)
    store.meanwhile = lambda: other.save(4, b"another's")
    with pytest.raises(PredicateFailed):
        snapshots.save(6, b"six")
    assert SnapshotStore(store, P).load() == Snapshot(4, b"another's")
