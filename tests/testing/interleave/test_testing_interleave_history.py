# SPDX-License-Identifier: Apache-2.0
"""The oracle of histories: what a regular register may return, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import MemoryStore
from compactlib.testing.interleave import Stage, SteppedStore, explore_schedules
from compactlib.testing.interleave.failure import InterleavingFailed
from compactlib.testing.interleave.history import ABSENT, History, HistoryOperation

K = b"k"


def history_of(*operations: tuple[str, int, int | None, Any]) -> History:
    """Operations as (kind, begin, end, value): `write`, or `fail` for a write that was not acknowledged."""
    stage = Stage(["nobody"])
    stage.close()
    history = History(stage, {K: "old"})
    for number, (kind, begin, end, value) in enumerate(operations):
        noted = HistoryOperation(f"p{number}", kind, begin=begin, last=begin if end is None else end,
                                 end=None if kind == "fail" else end)
        noted.write(K, value)
        history.operations.append(noted)
    return history


@pytest.mark.parametrize(("operations", "begin", "end", "allowed"), [
    ([], 1, 2, {"old"}),
    ([("write", 1, 2, "a")], 3, 4, {"a"}),  # acknowledged before: the old value is gone
    ([("write", 1, 4, "a")], 3, 5, {"old", "a"}),  # they overlap
    ([("write", 6, 7, "a")], 3, 5, {"old"}),  # not begun yet
    ([("write", 1, 2, "a"), ("write", 3, 4, "b")], 5, 6, {"b"}),  # overwritten completely
    ([("write", 1, 4, "a"), ("write", 3, 5, "b")], 6, 7, {"a", "b"}),  # in no order
    ([("write", 1, 2, "a"), ("write", 3, 9, "b")], 5, 6, {"a", "b"}),  # b is not acknowledged yet
    ([("fail", 1, None, "a")], 5, 6, {"old", "a"}),  # may take effect, or not
    ([("fail", 1, None, "a"), ("write", 3, 4, "b")], 5, 6, {"a", "b"}),  # ... at any time
    ([("write", 1, 2, ABSENT)], 3, 4, {ABSENT}),
])
def test_what_a_read_may_return(operations: list[Any], begin: int, end: int, allowed: set[Any]) -> None:
    assert history_of(*operations).allowed(K, begin, end) == allowed


def test_a_read_that_is_wrong_is_named_with_its_history() -> None:
    history = history_of(("write", 1, 2, "a"))
    read = HistoryOperation("reader", "get", begin=3, last=4, end=5)
    read.reads[K] = "old"
    history.operations.append(read)
    with pytest.raises(AssertionError, match=r"reader: get \[3..5\] found 'old' under b'k'; allowed: 'a'"):
        history.check_reads()


def test_the_end_must_be_explained_too() -> None:
    history = history_of(("write", 1, 2, "a"))
    history.check_final({K: "a"}, [K])
    with pytest.raises(AssertionError, match="at the end"):
        history.check_final({}, [K])


class World:
    def __init__(self, stage: Stage) -> None:
        self.store = SteppedStore(MemoryStore(), stage)
        self.store.set(b"p", K, b"old")
        self.history = History(stage, {K: b"old"})


def write(world: World) -> None:
    with world.history.operation("writer", "set") as noted:
        noted.write(K, b"new")
        world.store.set(b"p", K, b"new")


def test_it_judges_real_runs_and_finds_a_cache_that_is_never_refreshed() -> None:
    def read(world: World, *, cached: bool) -> None:
        value = world.store.get(b"p", K).value
        for _ in range(2):
            with world.history.operation("reader", "get") as noted:
                noted.reads[K] = value if cached else world.store.get(b"p", K).value

    def check(world: World, results: Any) -> None:
        world.history.check_reads()

    explore_schedules({"writer": write, "reader": lambda world: read(world, cached=False)}, World, check)
    with pytest.raises(InterleavingFailed, match="found b'old'"):
        explore_schedules({"writer": write, "reader": lambda world: read(world, cached=True)}, World, check)


def test_what_an_operation_raises_makes_it_a_failed_one() -> None:
    def fail(world: World) -> None:
        with world.history.operation("writer", "set") as noted:
            noted.write(K, b"lost")
            raise InvalidInput("refused")

    def check(world: World, results: Any) -> None:
        assert isinstance(results["writer"], CompactlibError)
        (noted,) = world.history.operations
        assert noted.failed
        assert noted.end is None
        world.history.check_final({K: b"lost"}, [K])
        world.history.check_final({K: b"old"}, [K])

    explore_schedules({"writer": fail}, World, check)
