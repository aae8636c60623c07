# SPDX-License-Identifier: Apache-2.0
"""The checker of histories: cases with known answers, and against every order there is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import permutations

import pytest

from tests.harness.effort import Effort
from tests.harness.linearizability import Call, first_wrong_key, is_linearizable


def put(value: str, began: float, ended: float = math.inf) -> Call:
    return Call("put", "k", value, began, ended)


def get(value: str | None, began: float, ended: float) -> Call:
    return Call("get", "k", value, began, ended)


CASES: dict[str, tuple[bool, list[Call]]] = {
    "nothing": (True, []),
    "a write is read": (True, [put("a", 1, 2), get("a", 3, 4)]),
    "a stale read": (False, [put("a", 1, 2), put("b", 3, 4), get("a", 5, 6)]),
    "a lost write": (False, [put("a", 1, 2), get(None, 3, 4)]),
    "what was never written": (False, [put("a", 1, 2), get("b", 3, 4)]),
    "at once, either is right": (True, [put("a", 1, 5), put("b", 2, 6), get("a", 7, 8)]),
    "there and back": (False, [put("a", 1, 9), put("b", 2, 9), get("a", 3, 4), get("b", 5, 6), get("a", 7, 8)]),
    "read back in time": (False, [put("a", 1, 2), put("b", 3, 10), get("b", 4, 5), get("a", 6, 7)]),
    "an unknown write is done late": (True, [put("a", 1), put("b", 2, 3), get("b", 4, 5), get("a", 6, 7)]),
    "an unknown write is never done": (True, [put("a", 1), put("b", 2, 3), get("b", 4, 5), get("b", 6, 7)]),
    "an unknown write is undone": (False, [put("a", 1), put("b", 2, 3), get("a", 4, 5), get("b", 6, 7)]),
    "an unknown write before it was asked": (False, [get("a", 1, 2), put("a", 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_known_histories(name: str) -> None:
    expected, calls = CASES[name]
    assert is_linearizable(calls) is expected
    others = [Call("put", "other", "x", 1, 2)]
    assert first_wrong_key([*calls, *others]) == (None if expected else "k")


def by_trying_all(calls: Sequence[Call]) -> bool:
    """Every order of every choice of the unknown writes."""
    known = [call for call in calls if call.ended < math.inf]
    unknown = [call for call in calls if call.ended == math.inf]
    for chosen in range(1 << len(unknown)):
        some = known + [call for place, call in enumerate(unknown) if chosen >> place & 1]
        for order in permutations(some):
            if any(later.ended < earlier.began for place, earlier in enumerate(order) for later in order[place:]):
                continue
            value = None
            for call in order:
                if call.kind == "get" and call.value != value:
                    break
                value = call.value
            else:
                return True
    return False


def test_the_search_agrees_with_trying_every_order(effort: Effort) -> None:
    rng = random.Random(1)
    found = {True: 0, False: 0}
    for _ in range(effort(300, 20_000)):
        calls: list[Call] = []
        for number in range(rng.randrange(1, 7)):
            began = rng.randrange(12) + number / 100
            ended = began + rng.randrange(1, 8)
            if rng.random() < 0.5:
                calls.append(put(f"v{number}", began, math.inf if rng.random() < 0.3 else ended))
            else:
                calls.append(get(rng.choice([None, *(f"v{each}" for each in range(6))]), began, ended))
        answer = is_linearizable(calls)
        assert answer == by_trying_all(calls), calls
        found[answer] += 1
    assert min(found.values()) > 20


def test_a_long_history_takes_no_time_that_grows_with_its_orders() -> None:
    """500 calls, always four at once."""
    calls = [put(f"v{number}", number, number + 4) if number % 2 else get(f"v{number - 1}", number, number + 4)
             for number in range(1, 501)]
    assert is_linearizable([call for call in calls if call.value != "v0"])
    calls[400] = get("v17", calls[400].began, calls[400].ended)
    assert not is_linearizable(calls)
