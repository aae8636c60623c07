# SPDX-License-Identifier: Apache-2.0
"""A conditional write whose answer is lost is made once, also of a key that no one has staged before."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from compactlib.kv import EXISTS, OutcomeUnknown
from compactlib.staging import Branch, Repository
from compactlib.testing import Request, StoreInFront
from tests.harness.staging_world import StagingWorld, contents


@pytest.mark.parametrize("write", [
    pytest.param(lambda main: main.put_if(b"new", b"1", None), id="put_if"),
    pytest.param(lambda main: main.put_if(b"old", b"1", EXISTS), id="put_if of a committed key"),
    pytest.param(lambda main: main.delete_if(b"old", EXISTS), id="delete_if"),
    pytest.param(lambda main: main.update(b"new", lambda _: b"1"), id="update")])
@pytest.mark.parametrize("happens", ["happens", "is lost", "comes late"])
def test_conditional_write_without_an_answer_is_made_once(write: Callable[[Branch], object], happens: str) -> None:
    world = StagingWorld()
    world.branch({"old": "0"})
    late: list[Callable[[], Any]] = []
    tries = 0

    def step(request: Request, act: Callable[[], Any]) -> Any:
        nonlocal tries
        if request.kind != "transact":
            return act()
        tries += 1
        if tries > 1:
            for each in late:
                each()
            return act()
        if happens == "happens":
            act()
        elif happens == "comes late":
            late.append(act)
        raise OutcomeUnknown(operation="write", path="a store under test", detail="no answer")

    main = Repository(StoreInFront(world.store, step), world.committed, clock=world.clock, rng=Random(2)).branch("main")
    write(main)
    assert contents(main) in ({"old": "0", "new": "1"}, {"old": "1"}, {})
    assert tries == (1 if happens == "happens" else 2)
