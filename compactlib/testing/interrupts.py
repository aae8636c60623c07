# SPDX-License-Identifier: Apache-2.0
"""Interrupts at the places where Python may raise `KeyboardInterrupt`: after a call of a C function, at the start of a
function, and at the next turn of a loop; in the library, and in the functions of `threading` and `sortedcontainers`
that it calls.

From Python 3.12 on `sys.monitoring` reports exactly these places. Before, a trace function finds them among the
instructions: after a call that entered no Python function.
"""

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
# The kit's own code is not interrupted: a driver's lock that stays held would block the next call.
_HARNESS = os.path.dirname(__file__) + os.sep
_STRAIGHT_ON = 4
"""The largest size of a branch instruction with its cache, bytes."""


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
        self._watch: _Monitored | _Traced = _Traced(self) if sys.version_info < (3, 12) else _Monitored(self)

    def __enter__(self) -> Interrupted:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Raise no interrupt from here on, as after the block."""
        self._watch.stop()

    def may_come_in(self, name: str) -> bool:
        """Return whether a file has places."""
        return name.startswith((*_LIBRARY, *self._files)) and not name.startswith(_HARNESS)

    def may_come_at(self, frame: FrameType) -> bool:
        """Return whether a frame has places."""
        caller = frame.f_back
        # Python discards an exception of a finalizer.
        is_final = any(each is not None and each.f_code.co_name == "__del__" for each in (frame, caller))
        place = caller if caller is not None and frame.f_code.co_filename == threading.__file__ else frame
        return not is_final and self.may_come_in(place.f_code.co_filename)

    def passed(self, frame: FrameType) -> None:
        """Count a place; raise or pause there if it has the number `place`."""
        self.places += 1
        if self.places == self.place:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if self._meanwhile is None:
                self.stop()
                raise KeyboardInterrupt
            self._meanwhile()


class _Monitored:
    """The places as `sys.monitoring` reports them.

    An exception from the report of a taken jump bypasses the handlers of its function. The place of a loop's next turn
    is therefore the next reported branch of the function that is not taken.
    """

    def __init__(self, interrupted: Interrupted) -> None:
        self._interrupted = interrupted
        self._thread = 0
        self._is_on = False
        self._looping: set[int] = set()

    def start(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool, events = monitoring.DEBUGGER_ID, monitoring.events
        self._thread = threading.get_ident()
        monitoring.use_tool_id(tool, "compactlib.testing")
        callbacks: dict[int, Callable[..., object]] = {
            events.CALL: self._seen, events.C_RETURN: self._returned, events.PY_START: self._began,
            events.JUMP: self._jumped, events.BRANCH: self._branched}
        for event, callback in callbacks.items():
            monitoring.register_callback(tool, event, callback)
        # Enable the places that an earlier watch has disabled.
        monitoring.restart_events()
        monitoring.set_events(tool, events.CALL | events.PY_START | events.JUMP | events.BRANCH)
        self._is_on = True

    def stop(self) -> None:
        if self._is_on:
            self._is_on = False
            monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
            tool, events = monitoring.DEBUGGER_ID, monitoring.events
            monitoring.set_events(tool, 0)
            for event in (events.CALL, events.C_RETURN, events.PY_START, events.JUMP, events.BRANCH):
                monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)

    def _returned(self, code: CodeType, *_: object) -> None:
        self._passed(sys._getframe(1))

    def _began(self, code: CodeType, _: int) -> object:
        self._passed(sys._getframe(1))
        return self._seen(code)

    def _jumped(self, code: CodeType, at: int, to: int) -> object:
        if to < at:
            self._looping.add(id(sys._getframe(1)))
        return self._seen(code)

    def _branched(self, code: CodeType, at: int, to: int) -> object:
        frame = sys._getframe(1)
        if id(frame) in self._looping:
            self._looping.discard(id(frame))
            if to - at <= _STRAIGHT_ON:
                self._passed(frame)
        return self._seen(code)

    def _seen(self, code: CodeType, *_: object) -> object:
        """Disable further reports of an instruction outside the files with places."""
        name = code.co_filename
        is_one = name == threading.__file__ or self._interrupted.may_come_in(name)
        return None if is_one else sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]

    def _passed(self, frame: FrameType) -> None:
        if self._is_on and threading.get_ident() == self._thread and self._interrupted.may_come_at(frame):
            self._interrupted.passed(frame)


class _Traced:
    """The places as a trace function finds them among the instructions."""

    def __init__(self, interrupted: Interrupted) -> None:
        self._interrupted = interrupted
        self._calling: set[int] = set()
        self._before: Any = None

    def start(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._entered)

    def stop(self) -> None:
        sys.settrace(self._before)

    def _entered(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_back is not None:
            # The caller has called a Python function, after which Python does not check for signals.
            self._calling.add(id(frame.f_back))
        if not self._interrupted.may_come_at(frame):
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
            self._interrupted.passed(frame)
        return self._stepped


@cache
def _places(code: CodeType) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """Return the offsets after calls, of places that need no call, and of calls."""
    steps = list(dis.get_instructions(code))
    # An exception after a call belongs to the call, also if a block ends between them: such places are left out.
    blocks = [(entry.start, entry.end) for entry in dis._parse_exception_table(code)]  # type: ignore[attr-defined]

    def is_inside_of_same(one: int, other: int) -> bool:
        return all((start <= one < end) == (start <= other < end) for start, end in blocks)

    behind, always = set(), {step.offset for step in steps if step.opname == "JUMP_BACKWARD"}
    is_call = {step.offset for step in steps if step.opname in ("CALL", "CALL_FUNCTION_EX")}
    for before, after in pairwise(steps):
        if is_inside_of_same(before.offset, after.offset):
            if before.offset in is_call:
                behind.add(after.offset)
            elif before.opname == "RESUME":
                always.add(after.offset)
    return frozenset(behind), frozenset(always), frozenset(is_call)


def interruptions(act: Callable[[], object], count: int, files: tuple[str, ...] = ()) -> Iterator[Interrupted]:
    """Yield interrupts, evenly spread over the places of `act`, each for another call of it.

    Args:
        act: the work to be interrupted; called here once without an interrupt.
        count: the number of interrupts; all places if there are fewer.
        files: see `Interrupted`.
    """
    with Interrupted(files=files) as whole:
        act()
    for number in range(min(count, whole.places)):
        yield Interrupted(1 + (2 * number + 1) * whole.places // (2 * min(count, whole.places)), files=files)
