# SPDX-License-Identifier: Apache-2.0
"""The schedule of a service as a state machine: which piece of work runs next. Times and outcomes go in, turns come
out.

No thread, no clock, no work: `WorkService` is the edge that carries the turns out. Times are seconds on any one clock
that does not go back. A piece of work belongs to a lane, which runs one at a time (one lane for each disk, for
example). On each lane a turn comes, in this order:

1. because it was requested, first come first served;
2. because something that was interrupted waits to be resumed, or a turn that failed to be tried again;
3. because its time has come, the longest overdue first.

What is asked for has a strength, of which the strongest counts until it is done. Work that fails is tried again after
a time that doubles with each failure in a row; it stays listed with its error, and a request has it tried at
once. Work that found its store busy is left alone for the first of these times, which is no failure.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Literal, TypeAlias

import attrs

from compactlib.errors import AuditFailed, InvalidInput, NotFound
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.services.ranking import Key, Ranking

Cause: TypeAlias = Literal["asked", "resume", "retry", "periodic"]
"""Why a turn has come."""
Condition: TypeAlias = Literal["running", "queued", "failing", "waiting", "disabled", "closed"]
"""Where a piece of work stands; `failing` means that it waits to be tried again."""
Ending: TypeAlias = Literal["done", "skipped", "busy", "failed", "given up", "stopped"]
"""What a turn ended in; `given up` is a failure that is not tried again, `stopped` one that was asked for."""

_TOLD_NAMES = 20
"""So many names of work stand in an error that knows no such name."""
_RANK: dict[Cause, int] = {"asked": 0, "resume": 1, "retry": 1, "periodic": 2}


@attrs.frozen
class Turn:
    """What the edge shall do now.

    Attributes:
        name: of the work.
        lane: is busy until `finished` is called.
        cause: why now.
        strength: how much; 0: only resume what was interrupted.
    """

    name: str
    lane: str
    cause: Cause
    strength: int


@attrs.frozen
class Accepted:
    """A request was taken.

    Attributes:
        name: of the work.
        state: `"queued"`; `"already queued"`, so that nothing was added; or `"running"`, it is being done now.
    """

    name: str
    state: Literal["queued", "already queued", "running"]


@attrs.frozen
class Refused:
    """What was asked cannot be done, and nothing was changed.

    Attributes:
        name: of the work.
        reason: why, and what to do.
    """

    name: str
    reason: str


@attrs.frozen
class Removed:
    """A piece of work is listed no more.

    Attributes:
        name: is free again.
    """

    name: str


@attrs.define
class Item:
    """A piece of work, as the agenda knows it.

    Attributes:
        name: unique in the agenda.
        lane: where it is done.
        every_seconds: from one periodic turn to the next; `None`: only at `next_due_at`.
        resumes: whether something may have been interrupted that a turn of strength 0 resumes.
        is_enabled: whether it may be done.
        is_open: whether what it works on is open.
        next_due_at: when its next periodic turn comes due, if any does.
        order: its place among all that was added.
        asked: the number and the strength of the request that waits, or `None`.
        owes_resume: something may have been interrupted.
        owed: the strength of what is due, 0 if nothing is.
        due_at: since when.
        failures: failed turns in a row.
        retry_at: when the next try comes due.
        busy_until: until when it is left alone because its store was busy.
        running: the turn that is being taken.
        finished_at: when the last turn ended, or `None`.
        ending: what it ended in, or `""`.
        told: the report, the reason or the error of the last turn in words.
        done: how many turns ended in `Done`.
    """

    name: str
    lane: str
    every_seconds: float | None
    resumes: bool
    is_enabled: bool
    is_open: bool
    next_due_at: float | None
    order: int
    asked: tuple[int, int] | None = None
    owes_resume: bool = False
    owed: int = 0
    due_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    busy_until: float = 0.0
    running: Turn | None = None
    finished_at: float | None = None
    ending: Ending | Literal[""] = ""
    told: str = ""
    done: int = 0

    @property
    def may_run(self) -> bool:
        """Whether it may be worked on."""
        return self.is_enabled and self.is_open

    @property
    def condition(self) -> Condition:
        """Where it stands."""
        if self.running is not None:
            return "running"
        if not self.is_open:
            return "closed"
        if not self.is_enabled:
            return "disabled"
        if self.asked is None and self.failures:
            return "failing"
        return "queued" if self.asked is not None or self.owes_resume or self.owed else "waiting"

    def turn(self, now: float) -> tuple[Cause, float] | None:
        """Why its turn has come, and since when; `None` if it has not."""
        if not self.may_run or self.running is not None:
            return None
        if self.asked is not None:
            return "asked", float(self.asked[0])
        if self.failures:
            return ("retry", self.retry_at) if now >= self.retry_at else None
        if now < self.busy_until:
            return None
        if self.owes_resume:
            return "resume", self.due_at
        return ("periodic", self.due_at) if self.owed else None

    def wake(self, now: float) -> float | None:
        """When `turn` may say something else though nothing happens to it, after `now`; `None` if never."""
        if not self.may_run:
            return None
        times = (self.next_due_at, self.retry_at if self.failures else self.busy_until)
        return min((at for at in times if at is not None and at > now), default=None)

    def note_due(self, now: float) -> None:
        """Its periodic turn is owed if its time has come."""
        if self.next_due_at is not None and self.may_run and now >= self.next_due_at:
            self.owe(1, self.next_due_at)
            self.next_due_at = None if self.every_seconds is None else now + self.every_seconds

    def owe(self, strength: int, since: float) -> None:
        """A turn is due."""
        if strength > 0 and not self.owed:
            self.due_at = since
        self.owed = max(self.owed, strength)


@attrs.frozen
class _Lane:
    """What waits on a lane, by name: for its turn, which has come, or for a time.

    Attributes:
        ready: what is to be done, by rank, since when, and order.
        later: what is to be looked at again, by when.
    """

    ready: Ranking = attrs.field(factory=Ranking)
    later: Ranking = attrs.field(factory=Ranking)


class Agenda:
    """The work, and whose turn it is. Used by one thread at a time. Equal calls give equal turns.

    Whatever concerns one piece of work costs O(log work), over many calls; `start`, `stop` and `audit` O(work).

    Args:
        retry_seconds: wait after a first failure, and after its store was busy, > 0.
        max_retry_seconds: the longest wait after a failure, at least `retry_seconds`.

    Raises:
        InvalidInput: a time is out of its range.
    """

    def __init__(self, *, retry_seconds: float = 60.0, max_retry_seconds: float = 6 * 3_600.0) -> None:
        if not 0 < retry_seconds <= max_retry_seconds < float("inf"):
            raise InvalidInput(f"retry_seconds {retry_seconds}, max_retry_seconds {max_retry_seconds}: give a time "
                               f"above 0, and another one that is not shorter")
        self._retry_seconds = retry_seconds
        self._max_retry_seconds = max_retry_seconds
        self._items: dict[str, Item] = {}
        self._busy: dict[str, str] = {}
        self._requests = 0
        self._added = 0
        # What waits on each lane, and the lanes by their first. True of all work but what is noted as unsure before it
        # changes, by lane and name; so an interrupt forgets none.
        self._waiting: dict[str, _Lane] = {}
        self._ready = Ranking()
        self._later = Ranking()
        self._unsure: dict[tuple[str, str], None] = {}
        self._state: Literal["new", "active", "stopped"] = "new"

    @property
    def is_active(self) -> bool:
        """Whether turns are handed out."""
        return self._state == "active"

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, and `start` not since."""
        return self._state == "stopped"

    @property
    def items(self) -> tuple[Item, ...]:
        """All work, in the order in which it was added."""
        return tuple(self._items.values())

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that work lies on, in that order."""
        return tuple(dict.fromkeys(item.lane for item in self._items.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._items

    def __getitem__(self, name: str) -> Item:
        """One piece of work.

        Raises:
            NotFound: there is none of this name.
        """
        item = self._items.get(name)
        if item is None:
            raise NotFound(f"there is no work {name!r}; {self._told_names()}")
        return item

    def _told_names(self) -> str:
        more = f", and {len(self._items) - _TOLD_NAMES:,} more" if len(self._items) > _TOLD_NAMES else ""
        return f"known is {', '.join(map(repr, islice(self._items, _TOLD_NAMES))) or 'none'}{more}"

    def _changing(self, name: str) -> Item:
        """One piece of work that is about to change."""
        item = self[name]
        self._unsure[item.lane, name] = None
        return item

    # ------------------------------------------------------------------------------------------------- what is reported

    def start(self, now: float) -> None:
        """Hand out turns from now on; every periodic turn is due at once."""
        if self._state != "active":
            self._state = "active"
            for name in self._items:
                self._due_at_once(self._changing(name), now)

    def stop(self) -> tuple[str, ...]:
        """Hand out no more turns; requests that wait are forgotten. Returns the names of what is being done."""
        self._state = "stopped"
        for name in self._items:
            self._changing(name).asked = None
        return tuple(self._busy.values())

    def add(self, name: str, lane: str, now: float, *, every_seconds: float | None = None, resumes: bool = False,
            enabled: bool = True, is_open: bool = True) -> None:
        """Take in a piece of work; see `Item`. One that is periodic is due at once.

        Raises:
            InvalidInput: there is one of this name, or a time is not above 0.
        """
        if name in self._items:
            raise InvalidInput(f"there is work {name!r} already; names have to be unique")
        if every_seconds is not None and not every_seconds > 0:
            raise InvalidInput(f"every_seconds is {every_seconds}; give more than 0, or None")
        self._added += 1
        item = Item(name, lane, every_seconds, resumes, enabled, is_open, order=self._added,
                    next_due_at=None if every_seconds is None else now, owes_resume=resumes)
        self._unsure[lane, name] = None
        self._items[name] = item

    def remove(self, name: str, *others: str) -> Removed | Refused:
        """Forget pieces of work, all or none, the first of which stands for them: only if they are disabled, or nothing
        is handed out, and nothing is done with them.

        Raises:
            NotFound: there is none of this name.
        """
        items = {each: self._changing(each) for each in (name, *others)}
        if self.is_active and any(item.is_enabled for item in items.values()):
            return Refused(name, "it is enabled; disable it first")
        if any(item.running is not None for item in items.values()):
            return Refused(name, "it is being worked on; try again when it has stopped")
        # By one call, which nothing interrupts.
        deque(map(self._items.pop, items), maxlen=0)
        return Removed(name)

    def set_enabled(self, name: str, enabled: bool, now: float) -> bool:
        """Let work be done, or not any more. Returns whether what is being done has to be stopped.

        What is enabled has its next periodic turn at once; what is disabled loses its request.

        Raises:
            NotFound: there is none of this name.
        """
        item = self._changing(name)
        if enabled and not item.is_enabled:
            self._due_at_once(item, now)
        if not enabled:
            item.asked = None
        item.is_enabled = enabled
        return not enabled and item.running is not None

    def set_open(self, name: str, is_open: bool, now: float) -> None:
        """What is worked on was opened, or closed. When it was opened it is resumed, and done, at once.

        Raises:
            NotFound: there is none of this name.
        """
        item = self._changing(name)
        if is_open and not item.is_open:
            self._due_at_once(item, now)
            item.owes_resume = item.resumes
        if not is_open:
            item.asked = None
        item.is_open = is_open

    def set_due(self, name: str, at: float) -> None:
        """The next periodic turn comes at this time, whatever `every_seconds` says.

        Raises:
            NotFound: there is none of this name.
        """
        self._changing(name).next_due_at = at

    def request(self, name: str, strength: int = 1, *, joins: bool = False) -> Accepted | Refused:
        """Request work, ahead of all that is due by time. While it waits, the strongest counts.

        Args:
            name: which.
            strength: how much, >= 1.
            joins: whether a turn of at least this strength that runs already will do; else another follows it.

        Raises:
            InvalidInput: the strength is below 1.
        """
        if strength < 1:
            raise InvalidInput(f"the strength of a request is {strength}; give at least 1")
        item = self._items.get(name)
        if item is None:
            return Refused(name, f"there is no such work; {self._told_names()}")
        if self.is_stopped:
            return Refused(name, "it was stopped; start it")
        if not item.may_run:
            return Refused(name, f"it is {'disabled; enable it' if item.is_open else 'closed; open it'} first")
        if joins and item.running is not None and item.running.strength >= strength:
            return Accepted(name, "running")
        if item.asked is not None:
            item.asked = item.asked[0], max(item.asked[1], strength)
            return Accepted(name, "already queued")
        self._changing(name)
        self._requests += 1
        item.asked = self._requests, strength
        return Accepted(name, "queued")

    def finished(self, name: str, ending: Ending, outcome: Outcome[object], now: float) -> None:
        """A turn has ended.

        Raises:
            InvalidInput: nothing was being done with it.
        """
        item = self._changing(name)
        turn = item.running
        if turn is None:
            raise InvalidInput(f"{name} has ended a turn that it never began")
        item.finished_at, item.ending = now, ending
        match outcome:
            case Done(stats):
                item.told = repr(stats)
            case Skipped(reason):
                item.told = reason
            case Failed(error):
                item.told = str(error)
        if ending in ("failed", "stopped", "busy"):
            item.owes_resume = item.resumes
            item.owe(turn.strength, now)
        if ending == "failed":
            item.failures += 1
            item.retry_at = now + self._wait_after(item.failures)
        elif ending == "busy":
            item.busy_until = now + self._retry_seconds
            if item.failures:
                item.retry_at = item.busy_until
        elif ending != "stopped":
            item.failures = 0
        item.done += ending == "done"
        # Last: what an interrupt has kept from being noted is seen to be running still.
        item.running = None
        del self._busy[turn.lane]

    def _wait_after(self, failures: int) -> float:
        # Beyond 2**60 the longest wait is reached whatever the first one was.
        return min(self._retry_seconds * 2.0 ** min(failures - 1, 60), self._max_retry_seconds)

    @staticmethod
    def _due_at_once(item: Item, now: float) -> None:
        if item.every_seconds is not None or item.next_due_at is not None:
            item.next_due_at = now

    # ------------------------------------------------------------------------------------------------ what follows

    def take(self, now: float, lane: str | None = None) -> Turn | None:
        """The turn that begins now, on this lane or on any one that is free; `None` if none does."""
        found = self._first(now, lane) if self.is_active else None
        return None if found is None else self._begin(*found)

    def _first(self, now: float, lane: str | None) -> tuple[Item, Cause] | None:
        """The work whose turn is next, on this lane or on any one that is free, and why."""
        self._look_at_changes(now)
        while True:
            first = self._ready.first() if lane is None else None
            on = lane if first is None else first[1]
            waiting = None if on is None or on in self._busy else self._waiting.get(on)
            found = None if waiting is None else waiting.ready.first()
            if on is None or found is None:
                return None
            item = self._items[found[1]]
            due = item.turn(now)
            if due is not None:
                return item, due[0]
            # A clock went back.
            self._look(on, item.name, now)

    def _look_at_changes(self, now: float) -> None:
        """Rank anew what has changed, and what time has changed."""
        for lane, name in tuple(self._unsure):
            self._look(lane, name, now)
        while (first := self._later.first()) is not None and first[0][0] <= now:
            found = self._waiting[first[1]].later.first()
            if found is None:
                raise AuditFailed(f"the lane {first[1]!r} is to be looked at again, and nothing waits there")
            self._look(first[1], found[1], now)

    def _look(self, lane: str, name: str, now: float) -> None:
        """Rank a piece of work, and its lane, by what it says now."""
        self._unsure[lane, name] = None
        ready: Key | None = None
        later: Key | None = None
        item = self._items.get(name)
        if item is not None and item.lane == lane:
            item.note_due(now)
            due, wake = item.turn(now), item.wake(now)
            ready = None if due is None else (float(_RANK[due[0]]), due[1], item.order)
            later = None if wake is None else (wake,)
        waiting = self._waiting.setdefault(lane, _Lane())
        waiting.ready.put(name, ready)
        waiting.later.put(name, later)
        first, soonest = waiting.ready.first(), waiting.later.first()
        self._ready.put(lane, None if first is None or lane in self._busy else first[0])
        self._later.put(lane, None if soonest is None else soonest[0])
        if first is None and soonest is None:
            del self._waiting[lane]
        del self._unsure[lane, name]

    def _begin(self, item: Item, cause: Cause) -> Turn:
        self._changing(item.name)
        strength = 0 if cause == "resume" else item.owed
        if item.asked is not None:
            strength = max(strength, item.asked[1])
        turn = Turn(item.name, item.lane, cause, strength)
        # Without a call from here on: an interrupt loses no request.
        item.running = turn
        self._busy[item.lane] = item.name
        item.asked = None
        if cause != "resume":
            item.owed = 0
        item.owes_resume = False
        return turn

    def next_wake(self, now: float, lane: str | None = None) -> float | None:
        """When `take` may have something new though nothing was reported meanwhile; `None` if never."""
        if not self.is_active:
            return None
        if self._first(now, lane) is not None:
            return now
        waiting = None if lane is None else self._waiting.get(lane)
        later = self._later if lane is None else None if waiting is None else waiting.later
        first = None if later is None else later.first()
        return None if first is None else first[0][0]

    def is_at_rest(self, now: float) -> bool:
        """Whether nothing is being done, and nothing would be now."""
        return not self._busy and (self.is_stopped or self._first(now, None) is None)
