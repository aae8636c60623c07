# SPDX-License-Identifier: Apache-2.0
"""Interrupts where Python itself may raise one: behind a call of a function of C, at a function's beginning, and where
a loop begins again; in the library, and in what it uses of `threading` and `sortedcontainers`."""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import sortedcontainers

import compactlib

_LIBRARY = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in (compactlib, sortedcontainers))
# A driver's lock and the stores in front are not what is tried: a lock that stays held would hang what comes next.
_HARNESS = os.path.dirname(__file__) + os.sep
_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})


@cache
def _places(code: CodeType) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """Offsets behind calls, those where an interrupt may come in any case, and those of calls."""
    steps = list(dis.get_instructions(code))
    # An exception behind a call belongs to the call, also where a block ends right behind it: such places are left out.
    blocks = [(entry.start, entry.end) for entry in dis._parse_exception_table(code)]  # type: ignore[attr-defined]

    def is_inside_of_same(one: int, other: int) -> bool:
        return all((start <= one < end) == (start <= other < end) for start, end in blocks)

    behind, always = set(), {step.offset for step in steps if step.opname == "JUMP_BACKWARD"}
    for before, after in pairwise(steps):
        if is_inside_of_same(before.offset, after.offset):
            if before.opname in _CALLS:
                behind.add(after.offset)
            elif before.opname == "RESUME":
                always.add(after.offset)
    return frozenset(behind), frozenset(always), frozenset(step.offset for step in steps if step.opname in _CALLS)


class Interrupted:
    """Raises `KeyboardInterrupt` at the place of a number, within the block, in this thread, and in the library and
    what it calls of `threading` and `sortedcontainers` alone.

    Args:
        place: counted from 1; 0: at none.
        meanwhile: called there instead, so that the block is paused.
        files: paths of further modules in which it may come, such as a test's own store.

    Attributes:
        place: as given.
        places: how many were passed.
        where: file and line of the one where it was raised.
    """

    def __init__(self, place: int = 0, meanwhile: Callable[[], object] | None = None,
                 files: tuple[str, ...] = ()) -> None:
        self.places: int = 0
        self.where: str = ""
        self.place: int = place
        self._meanwhile = meanwhile
        self._files = files
        self._calling: set[int] = set()
        self._before: Any = None

    def again(self) -> Interrupted:
        """Another one at the same place."""
        return Interrupted(self.place, self._meanwhile, self._files)

    def __enter__(self) -> Interrupted:
        self._before = sys.gettrace()
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Raise none from here on; the end of the block does the same."""
        sys.settrace(self._before)

    def _entered(self, frame: FrameType, event: str, _: object) -> Any:
        caller = frame.f_back
        if caller is not None:
            # What it calls is a function of Python, behind which no signal is looked for.
            self._calling.add(id(caller))
        # What is raised in a finalizer nobody gets.
        is_final = any(each is not None and each.f_code.co_name == "__del__" for each in (frame, caller))
        place = caller if caller is not None and frame.f_code.co_filename == threading.__file__ else frame
        name = place.f_code.co_filename
        if is_final or not name.startswith((*_LIBRARY, *self._files)) or name.startswith(_HARNESS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, _: object) -> Any:
        if event != "opcode":
            return self._stepped
        at = frame.f_lasti
        behind, always, calls = _places(frame.f_code)
        is_one = at in always or (at in behind and id(frame) not in self._calling)
        if at in calls:
            self._calling.discard(id(frame))
        if is_one:
            self.places += 1
            if self.places == self.place:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                if self._meanwhile is None:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                self._meanwhile()
        return self._stepped


def interruptions(act: Callable[[], object], count: int, files: tuple[str, ...] = ()) -> Iterator[Interrupted]:
    """So many interrupts, each for a new start of what `act` does, evenly over the places that it passes.

    Args:
        act: what is interrupted, once here and without an interrupt.
        count: how many; all places, if there are fewer.
        files: see `Interrupted`.
    """
    with Interrupted(files=files) as whole:
        act()
    for number in range(min(count, whole.places)):
        yield Interrupted(1 + (2 * number + 1) * whole.places // (2 * min(count, whole.places)), files=files)
