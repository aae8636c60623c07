# SPDX-License-Identifier: Apache-2.0
"""The stage: several actors, each a thread, of which exactly one runs at any time. They change places at steps only.

One actor runs at a time: at a step it declares what it is about to touch, asks the schedule which actor is next, and
hands over if that is another actor (about 10 microseconds); going on oneself costs a function call. So nothing is
concurrent, and the same choices give the same run.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import attrs

from compactlib.errors import CompactlibError
from tests.tools.interleave.access import ACKNOWLEDGED, Access, Span, cell

Choose: TypeAlias = Callable[[Mapping[str, Access], str | None], str | None]
"""`choose(waiting, running)`: whose step is next, of the actors that wait at one; `None` gives the run up."""

_BEGINS = Span(ACKNOWLEDGED, "", None, False)


class Abandoned(BaseException):
    """The run was given up; unwinds an actor. Not an `Exception`: no code under test may catch it and go on."""


class ActorStuck(AssertionError):
    """An actor neither reached a step nor ended: it waits for something that is not on the stage, such as a lock."""


@attrs.define
class Step:
    """One step that was taken.

    Attributes:
        number: counted from 1 in its run.
        actor: whose.
        access: what it touched.
        told: what came of it, if the run is recorded as a story.
    """

    number: int
    actor: str
    access: Access
    told: str = ""


@attrs.define
class Interval:
    """When an operation happened, in numbers of steps.

    Attributes:
        begin: the operation's first step; 0 before it was taken.
        end: the step that ends it; `None` before.
    """

    begin: int = 0
    end: int | None = None


class _Role:
    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.begins: Interval | None = None


class Stage:
    """Where actors run step by step. The harness makes it; a world wraps its stores with it (`interleave_stores`).

    Args:
        names: the actors' names.
        patience_seconds: how long a run may take.

    Attributes:
        steps: the steps of the run so far.
        telling: whether stores should note what came of each step (`note`).
    """

    def __init__(self, names: Sequence[str], *, patience_seconds: float = 60.0) -> None:
        self.steps: list[Step] = []
        self.telling: bool = False
        self._roles = {name: _Role(name) for name in names}
        self._tasks: dict[str, Callable[[], object]] = {}
        self._results: dict[str, object] = {}
        self._running: _Role | None = None
        self._waiting: dict[str, Access] = {}
        self._choose: Choose = lambda waiting, running: next(iter(waiting))
        self._opening = False
        self._giving_up = False
        self._wrong: BaseException | None = None
        self._patience_seconds = patience_seconds
        self._curtain = _thread.allocate_lock()
        self._curtain.acquire()
        self._closing = False
        for role in self._roles.values():
            threading.Thread(target=self._play, args=(role,), daemon=True, name=f"actor {role.name}").start()

    @property
    def now(self) -> int:
        """The number of the step that was taken last: a clock for histories."""
        return len(self.steps)

    def run(self, actors: Mapping[str, Callable[[], object]], choose: Choose) -> dict[str, object] | None:
        """Let all actors run to their ends; what each returned, or the library's error it raised.

        Returns:
            `None` if `choose` gave the run up.

        Raises:
            ActorStuck: an actor waits for something off the stage.
            BaseException: what `choose` raised, or an actor, if it is none of the library's errors.
        """
        self.steps, self._results, self._waiting, self._tasks = [], {}, {}, dict(actors)
        self._giving_up, self._wrong, self._choose = False, None, choose
        # Up to its first step an actor touches nothing that others could see.
        self._opening = True
        for role in self._roles.values():
            role.begins = None
            self._hand_to(role)
            self._await_curtain()
        self._opening = False
        first = self._next(None)
        if first is not None:
            self._hand_to(first)
            self._await_curtain()
        self._running = None
        if self._wrong is not None:
            raise self._wrong
        return None if self._giving_up else dict(self._results)

    def step(self, access: Access) -> None:
        """Called by a store before each operation: wait for this actor's turn. Off the stage it does nothing."""
        role = self._running
        if role is None:
            return
        if self._giving_up:
            raise Abandoned
        if role.begins is not None:
            access = Access(access.name, (*access.spans, _BEGINS))
        self._waiting[role.name] = access
        if self._opening:
            self._curtain.release()
            role.baton.acquire()
        else:
            chosen = self._next(role)
            if chosen is not None and chosen is not role:
                self._hand_to(chosen)
                role.baton.acquire()
        if self._giving_up:
            raise Abandoned
        if role.begins is not None:
            role.begins.begin, role.begins = self.now, None

    def note(self, told: str) -> None:
        """Say what came of the step just taken."""
        if self._running is not None and self.steps:
            self.steps[-1].told = told

    @contextmanager
    def operation(self) -> Iterator[Interval]:
        """Inside it one operation of the actor happens: it begins with its first step and ends with a step of its own.

        So the exploration also tries both orders where only the end of one operation and the beginning of another one
        would change places: whether an operation that began later sees what was acknowledged.
        """
        role, interval = self._running, Interval()
        if role is not None:
            role.begins = interval
        try:
            yield interval
        finally:
            if role is not None and not self._giving_up:
                self.step(Access("ends", (cell(ACKNOWLEDGED, role.name, writes=True),)))
                interval.end = self.now

    def close(self) -> None:
        """End the threads."""
        self._closing = self._giving_up = True
        for role in self._roles.values():
            role.baton.release()

    def _next(self, running: _Role | None) -> _Role | None:
        """Whose step is taken now. `None`: no actor has one, or the run is given up."""
        if not self._waiting or self._giving_up:
            return None
        try:
            name = self._choose(self._waiting, None if running is None else running.name)
        except BaseException as error:  # the actor must not see it
            self._wrong, name = error, None
        if name is None:
            self._giving_up = True
            return None if running is not None else next(iter(self._roles[name] for name in self._waiting))
        self.steps.append(Step(len(self.steps) + 1, name, self._waiting.pop(name)))
        return self._roles[name]

    def _hand_to(self, role: _Role) -> None:
        self._running = role
        role.baton.release()

    def _await_curtain(self) -> None:
        if not self._curtain.acquire(timeout=self._patience_seconds):
            role = self._running
            name = "(none)" if role is None else role.name
            raise ActorStuck(f"the actor {name!r} did not come to its next step; the run took {self._patience_seconds} "
                             f"seconds. Actors may share nothing that one of them can wait for")

    def _play(self, role: _Role) -> None:
        while True:
            role.baton.acquire()
            if self._is_closed():
                return
            try:
                self._results[role.name] = self._tasks[role.name]()
            except Abandoned:
                pass
            except CompactlibError as error:
                self._results[role.name] = error
            except BaseException as error:  # raised by run(), in the caller's thread
                self._wrong, self._giving_up = self._wrong or error, True
            if self._is_closed():
                return
            self._leave(role)

    def _is_closed(self) -> bool:
        return self._closing

    def _leave(self, role: _Role) -> None:
        self._waiting.pop(role.name, None)
        if self._opening or not self._waiting:
            self._curtain.release()
            return
        if self._giving_up:
            self._hand_to(self._roles[next(iter(self._waiting))])
            return
        chosen = self._next(None)
        assert chosen is not None, "an actor waits"
        self._hand_to(chosen)
