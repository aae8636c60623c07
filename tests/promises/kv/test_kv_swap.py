# SPDX-License-Identifier: Apache-2.0
"""A swap whose answer is lost is not carried out twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, InvalidInput
from compactlib.kv import EXISTS, MemoryStore, OutcomeUnknown, PredicateFailed, Swap, swap
from compactlib.testing import Request, StoreInFront

ACCOUNT, ORDER = (b"p", b"account"), (b"p", b"order")


def test_created_key_that_is_gone_before_the_next_read_is_not_created_again() -> None:
    """The other key that the swap read is unchanged: the created key alone could show that the write had happened."""
    store = MemoryStore()
    store.set(*ACCOUNT, b"10")
    made: list[bytes] = []

    def step(request: Request, act: Callable[[], Any]) -> Any:
        answer = act()
        if request.kind == "transact":
            made.append(store.get(*ORDER).value)
            if len(made) == 1:
                store.delete(*ORDER)  # another process carries the order out
                raise OutcomeUnknown(operation="transact", path="a test", detail="no answer")
        return answer

    with pytest.raises(OutcomeUnknown):
        swap(StoreInFront(store, step), [ACCOUNT, ORDER], lambda found: Swap(None, {ORDER: found[ACCOUNT].value}),
             clock=ManualClock(0.0))
    assert made == [b"10"]


@pytest.mark.parametrize("state", [EXISTS, "the first state"])
def test_own_condition_does_not_replace_the_comparison_of_a_key_that_was_read(state: object) -> None:
    """Another writer is first: the swap decides again on the new value, or is refused, but overwrites nothing."""
    store, late = MemoryStore(), list[bytes]()
    store.set(*ACCOUNT, b"10")
    held = EXISTS if state is EXISTS else store.get(*ACCOUNT).predicate

    def decide(found: Any) -> Swap[None]:
        before = int(found[ACCOUNT].value)
        if not late:
            late.append(b"20")
            store.set(*ACCOUNT, b"20")
        return Swap(None, {ACCOUNT: b"%d" % (before + 1)}, {ACCOUNT: held})

    with suppress(InvalidInput, PredicateFailed, Busy):
        swap(store, [ACCOUNT], decide, clock=ManualClock(0.0))
    assert store.get(*ACCOUNT).value in (b"20", b"21")
