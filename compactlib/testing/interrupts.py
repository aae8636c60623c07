# SPDX-License-Identifier: Apache-2.0
"""Interrupts at the places where Python may raise `KeyboardInterrupt`: after a call of a C function, at the start of a
function, and at the next turn of a loop; in the library, and in the functions of `threading` and `sortedcontainers`
that it calls.

A trace function finds them among the instructions: after a call that entered no Python function.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import sortedcontainers

import compactlib

_LIBRARY = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in (compactlib, sortedcontainers))
# The kit's own code is not interrupted: a driver's lock that stays held would block the next call.
_HARNESS = os.path.dirname(__file__) + os.sep


class Interrupted:
    """Raises `KeyboardInterrupt` in this thread at one place of the block.

    Places are in the library, and in the functions of `threading` and `sortedcontainers` that it calls.

    Args:
        place: number of the place, from 1; 0: no interrupt.
        meanwhile: called there instead, so that the block is paused.
        files: paths of further modules with places, such as a test's own store.

    Attributes:
        place: number of the place.
        places: the number of places passed so far.
        where: file and line of the interrupt.
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

    def __enter__(self) -> Interrupted:
        self._before = sys.gettrace()
        # Python 3.12 reports instructions only if some frame wants them when tracing starts.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Raise no interrupt from here on, as after the block."""
        sys.settrace(self._before)

    def _entered(self, frame: FrameType, event: str, _: object) -> Any:
        caller = frame.f_back
        if caller is not None:
            # The caller has called a Python function, after which Python does not check for signals.
            self._calling.add(id(caller))
        # Python discards an exception of a finalizer.
        is_final = any(each is not None and each.f_code.co_name == "__del__" for each in (frame, caller))
        place = caller if caller is not None and frame.f_code.co_filename == threading.__file__ else frame
        name = place.f_code.co_filename
        if is_final or not name.startswith((*_LIBRARY, *self._files)) or name.startswith(_HARNESS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, sys.version_info >= (3, 13)
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            # Python 3.13 forgets the first request for a frame's instructions when the frame calls a traced function.
            frame.f_trace_opcodes = False
            frame.f_trace_opcodes = True
        if event != "opcode":
            return self._stepped
        at = frame.f_lasti
        after, always, calls = _places(frame.f_code)
        is_one = at in always or (at in after and id(frame) not in self._calling)
        if at in calls:
            self._calling.discard(id(frame))
        if is_one:
            self.places += 1
            if self.places == self.place:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                if self._meanwhile is None:
                    self.stop()
                    raise KeyboardInterrupt
                self._meanwhile()
        return self._stepped


@cache
def _places(code: CodeType) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """Return the offsets after calls, of places that need no call, and of calls."""
    steps = list(dis.get_instructions(code))
    # An exception after a call belongs to the call, also if a block ends between them: such places are left out.
    blocks = [(entry.start, entry.end) for entry in dis._parse_exception_table(code)]  # type: ignore[attr-defined]

    def is_inside_of_same(one: int, other: int) -> bool:
        return all((start <= one < end) == (start <= other < end) for start, end in blocks)

    after_call, always = set(), {step.offset for step in steps if step.opname == "JUMP_BACKWARD"}
    is_call = {step.offset for step in steps if step.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX")}
    for before, after in pairwise(steps):
        if is_inside_of_same(before.offset, after.offset):
            if before.offset in is_call:
                after_call.add(after.offset)
            elif before.opname == "RESUME":
                always.add(after.offset)
    return frozenset(after_call), frozenset(always), frozenset(is_call)
