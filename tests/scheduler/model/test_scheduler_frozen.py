# SPDX-License-Identifier: Apache-2.0
"""What is made quickly is what attrs makes: as frozen, as equal, and to be copied and pickled."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import attrs
import pytest

from compactlib.errors import InvalidInput
from compactlib.scheduler import (
    BlockMeta,
    Command,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    PollRequest,
    PollResponse,
    StatusUpdate,
)
from compactlib.scheduler.model.frozen import made_quickly, maker
from compactlib.scheduler.model.poll import Assignment, StatusAnswer, Verdict

BLOCK = BlockMeta(id="a", tenant="A", shard=1, level=2, size_bytes=3)
VALUES: list[Any] = [
    Command(1, 2, 3.0), Command(1, 2, 3.0, expiry=2.0), BLOCK,
    JobPlan(name="j", tenant="A", shard=1, compaction_level=0, source_blocks=("a", "b"), size_bytes=4),
    CompactedBlocks(tenant="A", shard=1, source_blocks=("a",), new_blocks=(BLOCK,)),
    StatusUpdate("j", 5, JobStatus.FAILED, reason="why"), PollRequest(job_capacity=2),
    StatusAnswer("j", Verdict.ACCEPTED),
    Assignment("j", 5, 6.0, blocks=(BLOCK,)), PollResponse(now=7.0, why="so"),
]


@attrs.frozen
class Usual:
    """As attrs makes it."""

    first: int
    second: str = "b"
    third: float | None = attrs.field(default=None, eq=False, repr=False)


@made_quickly
@attrs.frozen
class Quick:
    """The same, made quickly."""

    first: int
    second: str = "b"
    third: float | None = attrs.field(default=None, eq=False, repr=False)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_frozen_and_can_be_copied_and_pickled(value: Any) -> None:
    name = attrs.fields(type(value))[0].name
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(value, name, "other")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        delattr(value, name)
    with pytest.raises(AttributeError):
        value.strange = 1
    again = [copy.copy(value), copy.deepcopy(value), attrs.evolve(value),
             *(pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1))]
    for other in again:
        assert type(other) is type(value)
        assert attrs.asdict(other) == attrs.asdict(value)
        assert (other, hash(other), repr(other)) == (value, hash(value), repr(value))


@pytest.mark.parametrize("given", [((1,), {}), ((1, "x"), {}), ((), {"first": 1, "third": 2.0}), ((), {}),
                                   ((1,), {"first": 1}), ((1, "b", 2.0, 3), {}), ((1,), {"strange": 1})], ids=repr)
def test_a_quick_class_takes_compares_and_prints_what_a_usual_one_does(given: tuple[Any, Any]) -> None:
    arguments, named = given
    try:
        usual = Usual(*arguments, **named)
    except TypeError:
        for make in (Quick, maker(Quick)):
            with pytest.raises(TypeError):
                make(*arguments, **named)
        return
    for make in (Quick, maker(Quick)):
        quick = make(*arguments, **named)
        assert type(quick) is Quick
        assert attrs.asdict(quick) == attrs.asdict(usual)
        assert repr(quick) == repr(usual).replace("Usual", "Quick")
        assert quick == Quick(usual.first, usual.second)
        assert quick != Quick(usual.first + 1, usual.second)
    assert list(inspect.signature(Quick).parameters) == list(inspect.signature(Usual).parameters)


def test_a_quick_class_is_not_to_be_inherited_from() -> None:
    with pytest.raises(TypeError, match="Heir inherits from Quick"):
        type("Heir", (Quick,), {})


def test_what_a_class_looks_at_is_looked_at_however_a_value_is_made() -> None:
    for make in (BlockMeta, maker(BlockMeta)):
        with pytest.raises(InvalidInput, match="not a block id"):
            make(id="", tenant="A", shard=1, level=0)
    with pytest.raises(InvalidInput):
        attrs.evolve(BLOCK, shard=-1)
