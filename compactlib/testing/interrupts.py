# SPDX-License-Identifier: Apache-2.0
"""Interrupts where Python itself may raise one: behind a call of a function of C, at a function's beginning, and where
a loop begins again; in the library, and in what it uses of `threading` and `sortedcontainers`.

From Python 3.12 on `sys.monitoring` reports exactly these places. Before, a trace function finds them among the
instructions: behind a call during which no function of Python was entered.
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
# A driver's lock and the stores in front are not what is tried: a lock that stays held would hang what comes next.
_HARNESS = os.path.dirname(__file__) + os.sep
_STRAIGHT_ON = 4
"""So many bytes a branch has at most, with its cache."""


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
        self._watch: _Monitored | _Traced = _Traced(self) if sys.version_info < (3, 12) else _Monitored(self)

    def __enter__(self) -> Interrupted:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Raise none from here on; the end of the block does the same."""
        self._watch.stop()

    def may_come_in(self, name: str) -> bool:
        """Whether it may come in a file of this name."""
        return name.startswith((*_LIBRARY, *self._files)) and not name.startswith(_HARNESS)

    def may_come_at(self, frame: FrameType) -> bool:
        """Whether it may come in this frame."""
        caller = frame.f_back
        # What is raised in a finalizer nobody gets.
        is_final = any(each is not None and each.f_code.co_name == "__del__" for each in (frame, caller))
        place = caller if caller is not None and frame.f_code.co_filename == threading.__file__ else frame
        return not is_final and self.may_come_in(place.f_code.co_filename)

    def passed(self, frame: FrameType) -> None:
        """Count a place; raise there, or pause, if it is the one."""
        self.places += 1
        if self.places == self.place:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if self._meanwhile is None:
                self.stop()
                raise KeyboardInterrupt
            self._meanwhile()


class _Monitored:
    """The places as `sys.monitoring` reports them.

    What is raised where a jump that is made is reported passes the handlers of its function by: a loop begins again
    where the next branch of its function is reported that goes straight on.
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
        # What an earlier one was not to see.
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
        """That the place is not to be reported any more, if it is of no interest."""
        name = code.co_filename
        is_one = name == threading.__file__ or self._interrupted.may_come_in(name)
        return None if is_one else sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]

    def _passed(self, frame: FrameType) -> None:
        if self._is_on and threading.get_ident() == self._thread and self._interrupted.may_come_at(frame):
            self._interrupted.passed(frame)


class _Traced:
    """The places among the instructions that a trace function is shown."""

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
            # What it calls is a function of Python, behind which no signal is looked for.
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
    """Offsets behind calls, those where an interrupt may come in any case, and those of calls."""
    steps = list(dis.get_instructions(code))
    # An exception behind a call belongs to the call, also where a block ends right behind it: such places are left out.
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
