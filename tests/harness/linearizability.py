# SPDX-License-Identifier: Apache-2.0
"""A linearizability checker for registers.

Exhaustive: Wing and Gong's search ("Testing and Verifying Concurrent Objects", 1993) over the orders that respect real
time, with the memo of Lowe ("Testing for Linearizability", 2017): a set of done calls with a value is searched once. A
history of several keys is linearizable if the history of each key is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import attrs


@attrs.frozen
class Call:
    """One call of a client.

    Attributes:
        kind: read or write.
        key: the register.
        value: the written value, unique for its register, or the read value; `None`: no value yet.
        began: time of the request, on a clock that all clients share.
        ended: time of the answer; infinite for a write with an unknown outcome.
    """

    kind: Literal["put", "get"]
    key: str
    value: str | None
    began: float
    ended: float = math.inf


def first_wrong_key(calls: Iterable[Call]) -> str | None:
    """Return a key whose calls are not linearizable, or `None`."""
    by_key: dict[str, list[Call]] = {}
    for call in calls:
        by_key.setdefault(call.key, []).append(call)
    return next((key for key, found in sorted(by_key.items()) if not is_linearizable(found)), None)


def is_linearizable(calls: Sequence[Call]) -> bool:
    """Return whether the calls of one register, which begins without a value, are linearizable."""
    read = {call.value for call in calls if call.kind == "get"}
    # A write without an answer whose value was never read constrains nothing.
    calls = sorted((call for call in calls if call.ended < math.inf or call.value in read), key=lambda call: call.began)
    wanted = sum(1 << place for place, call in enumerate(calls) if call.ended < math.inf)
    seen: set[tuple[int, str | None]] = set()
    stack: list[tuple[int, str | None]] = [(0, None)]
    while stack:
        done, value = stack.pop()
        if done & wanted == wanted:
            return True
        left = [(place, call) for place, call in enumerate(calls) if not done >> place & 1]
        first_end = min(call.ended for _, call in left)
        next_ones = [(place, call) for place, call in left if call.began < first_end]
        # A read of the current value changes nothing, so it can be first.
        reads = sum(1 << place for place, call in next_ones if call.kind == "get" and call.value == value)
        after = [(done | reads, value)] if reads else [
            (done | 1 << place, call.value) for place, call in next_ones if call.kind == "put"]
        for state in after:
            if state not in seen:
                seen.add(state)
                stack.append(state)
    return False
