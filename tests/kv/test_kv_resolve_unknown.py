# SPDX-License-Identifier: Apache-2.0
"""Unknown stays unknown until it is seen."""

from __future__ import annotations

import itertools
import random

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore, OutcomeUnknown
from compactlib.kv.cell import resolve_unknown


def unknown() -> OutcomeUnknown:
    return OutcomeUnknown(operation="put", path="here", detail="no answer")


def test_resolve_returns_the_value_read() -> None:
    clock = ManualClock()
    assert resolve_unknown(lambda: "written", unknown(), clock=clock) == "written"
    assert clock.now() == 0


def test_failed_reads_are_retried_with_growing_pauses() -> None:
    clock = ManualClock()
    times: list[float] = []

    def look() -> str:
        times.append(clock.now())
        if len(times) < 5:
            raise ConnectionError("away")
        return "written"

    assert resolve_unknown(look, unknown(), clock=clock, rng=random.Random(1)) == "written"
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(2 ** n * 0.01 <= pause <= 2 ** n * 0.02 for n, pause in enumerate(pauses))


def test_an_unreadable_outcome_stays_unknown() -> None:
    clock, looked = ManualClock(), 0

    def look() -> str:
        nonlocal looked
        looked += 1
        raise ValueError("damaged")

    error = unknown()
    with pytest.raises(OutcomeUnknown) as raised:
        resolve_unknown(look, error, clock=clock)
    assert raised.value is error
    assert isinstance(raised.value.__cause__, ValueError)
    assert looked == 8
    assert 1.1 <= clock.now() <= 2.3


def test_resolve_reads_a_real_store() -> None:
    store = MemoryStore()
    store.set(b"p", b"k", b"v")
    assert resolve_unknown(lambda: store.get(b"p", b"k").value, unknown()) == b"v"
