# SPDX-License-Identifier: Apache-2.0
"""Whether what clients saw of one register could have come from one place, one call after another.

Exhaustive: Wing and Gong's search ("Testing and Verifying Concurrent Objects", 1993) over the orders that keep to real
time, with the memo of Lowe ("Testing for Linearizability", 2017): the same calls done and the same value need no second
look. A history of several keys is linearizable if that of each key is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import attrs


@attrs.frozen
class Call:
    """What one client asked for.

    Attributes:
        kind: whether it wrote or read.
        key: the register.
        value: what was written, unlike anything else written there, or what was read; `None`: no value yet.
        began: when it was asked, on a clock that all clients share.
        ended: when it was answered; infinite for a write of which nobody knows whether it was done.
    """

    kind: Literal["put", "get"]
    key: str
    value: str | None
    began: float
    ended: float = math.inf


def first_wrong_key(calls: Iterable[Call]) -> str | None:
    """A key whose calls are not linearizable, `None` if all are."""
    by_key: dict[str, list[Call]] = {}
    for call in calls:
        by_key.setdefault(call.key, []).append(call)
    return next((key for key, found in sorted(by_key.items()) if not is_linearizable(found)), None)


def is_linearizable(calls: Sequence[Call]) -> bool:
    """Whether the calls of one register are, which had no value at first."""
    read = {call.value for call in calls if call.kind == "get"}
    # A write that nobody was told of and nobody has seen says nothing.
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
        # To read what is there now changes nothing: it may as well come first.
        reads = sum(1 << place for place, call in next_ones if call.kind == "get" and call.value == value)
        after = [(done | reads, value)] if reads else [
            (done | 1 << place, call.value) for place, call in next_ones if call.kind == "put"]
        for state in after:
            if state not in seen:
                seen.add(state)
                stack.append(state)
    return False
