# SPDX-License-Identifier: Apache-2.0
"""The fence in an object store: another worker, or a fault, at every request."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.fences import Admission, Commitment, FencedOff, ObjectFence
from compactlib.fences.fence import RECORDS
from compactlib.objects import MemoryObjects, ObjectStoreFailed
from compactlib.objects.register import ObjectRegister
from tests.harness.objects.unsure_objects import UnsureObjects


def fence_in(objects: MemoryObjects, clock: ManualClock | None = None) -> ObjectFence:
    return ObjectFence(objects, keep_seconds=100.0, clock=ManualClock() if clock is None else clock)


OTHERS: dict[str, Callable[[ObjectFence], Any]] = {
    "a higher token": lambda fence: fence.admit("job", 9),
    "a higher commit": lambda fence: (fence.admit("job", 9), fence.commit("job", 9, b"higher")),
    "the floor": lambda fence: fence.raise_floor(7),
    "the floor, and a higher token": lambda fence: (fence.raise_floor(7), fence.admit("job", 9)),
    "the same token": lambda fence: fence.admit("job", 5),
}


def records_of(objects: MemoryObjects) -> list[Admission | None]:
    """All that the resource's record ever was, the first one first."""
    place = f"fences/resource/{hashlib.sha256(b'job').hexdigest()[:32]}"
    return [RECORDS.decode(version.value, place) if version.value else None
            for version in reversed(ObjectRegister(objects, place).versions())]


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("known", [False, True])
def test_whatever_another_does_at_any_request_a_late_commit_changes_nothing(
        others: Callable[[ObjectFence], Any], *, known: bool) -> None:
    for at in itertools.count(1):
        objects = UnsureObjects()
        if known:
            fence_in(objects).admit("job", 4)
        reached: list[int] = []

        def meanwhile(number: int, at: int = at, objects: UnsureObjects = objects,
                      reached: list[int] = reached) -> None:
            if number == at:
                objects.meanwhile = lambda number: None
                others(fence_in(objects))
                reached.append(number)

        objects.arm(0)
        objects.meanwhile = meanwhile
        try:
            fence_in(objects).admit("job", 5)
            fence_in(objects).commit("job", 5, b"ours")
            done = True
        except FencedOff:
            done = False
        if not reached:
            assert at > 8
            return
        history = records_of(objects)
        ours = [place for place, record in enumerate(history)
                if record is not None and record.committed == Commitment(5, b"ours")]
        higher = [place for place, record in enumerate(history) if record is None or record.token > 5]
        assert bool(ours[:1]) is done
        assert not done or not higher or ours[0] < higher[0]
        # Whoever came with more was there before the end, or has taken the record away.
        assert not done or bool(higher) is (others is not OTHERS["the same token"])


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("stays_away", [False, True])
def test_whichever_request_fails_repeating_the_call_ends_it(*, carried_out: bool, stays_away: bool) -> None:
    for at in itertools.count(1):
        objects = UnsureObjects()
        objects.arm(at, carried_out=carried_out, stays_away=stays_away)
        try:
            fence_in(objects).admit("job", 5)
            fence_in(objects).commit("job", 5, b"ours")
            fence_in(objects).raise_floor(3)
            failed = False
        except CompactlibError as error:
            assert isinstance(error, ObjectStoreFailed)
            failed = True
        if objects.requests < at:
            assert not failed
            assert at > 20
            return
        objects.arm(0)
        fence_in(objects).admit("job", 5)
        assert fence_in(objects).commit("job", 5, b"ours") == Admission("job", 5, Commitment(5, b"ours"))
        assert fence_in(objects).raise_floor(3) == 0


def test_what_lies_below_the_floor_goes_and_in_time_its_objects_too() -> None:
    clock = ManualClock(1000.0)
    objects = MemoryObjects(clock=clock)
    fence = fence_in(objects, clock)
    for token in range(1, 21):
        fence.admit(f"job {token}", token)
        fence.commit(f"job {token}", token, b"files")
    assert fence.raise_floor(20) == 19
    assert fence.raise_floor(20) == 0
    clock.advance(101.0)
    assert fence.raise_floor(20) == 0
    # Two of the one that is left, and of each other that it was removed.
    assert len(list(objects.list("fences/resource/"))) == 2 + 19
    with pytest.raises(FencedOff):
        fence.admit("job 3", 3)
    assert fence.admit("job 3", 30) == Admission("job 3", 30, None)


def test_a_record_that_was_removed_long_ago_and_begins_anew_is_not_overtaken() -> None:
    """At any request of one with a lower token the objects of the old record go, and a higher token commits."""
    for at in itertools.count(1):
        clock = ManualClock(1000.0)
        objects = UnsureObjects(clock=clock)
        fence_in(objects, clock).admit("job", 3)
        assert fence_in(objects, clock).raise_floor(4) == 1
        clock.advance(101.0)
        reached: list[int] = []

        def meanwhile(number: int, at: int = at, objects: UnsureObjects = objects, clock: ManualClock = clock,
                      reached: list[int] = reached) -> None:
            if number == at:
                objects.meanwhile = lambda number: None
                other = fence_in(objects, clock)
                other.raise_floor(4)
                other.admit("job", 9)
                other.commit("job", 9, b"higher")
                reached.append(number)

        objects.arm(0)
        objects.meanwhile = meanwhile
        with contextlib.suppress(FencedOff):
            fence_in(objects, clock).admit("job", 6)
        if not reached:
            assert at > 8
            return
        assert fence_in(objects, clock).committed("job") == Commitment(9, b"higher")
