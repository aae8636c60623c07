# SPDX-License-Identifier: Apache-2.0
"""Actors that take turns at their requests, each a process over shared stores; and the allowed results of reads.

One actor runs at any time. At each request of its stores the next turn is a pick; in the ordinary option the actor
keeps its turn. `explore_schedules` runs the schedules with at most two changes of turn, `sample_schedules` draws some
with more, and a failure prints its picks.

A history checks reads by the weakest useful rule (a *regular* register in Lamport's sense): a read returns a value of a
write that began before the read ended, and that no acknowledged write overwrote completely (began after its end, and
ended) before the read began. A failed write may take effect at any time after it began. Overlapping writes have no
order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final, TypeAlias

import attrs

from compactlib.errors import CompactlibError
from compactlib.testing import Choices, Request, explore, sample

_PATIENCE_SECONDS = 60.0
_MOST_CHANGES = 8
Actors: TypeAlias = Mapping[str, Callable[[Any], object]]
"""Names of actors, each with the function that the actor calls with the world."""
Check: TypeAlias = Callable[[Any, Mapping[str, Any]], object]
"""Raises if a run is wrong; gets the world, and the result of each actor or the library's error that it raised."""


class InterleavingFailed(AssertionError):
    """A schedule failed; its notes have the picks, its cause is the error."""


def explore_schedules(actors: Actors, make_world: Callable[[Stage], Any], check: Check, *,
                      max_schedules: int | None = None) -> int:
    """Run the actors under every schedule with at most two changes of turn, and return the number of schedules.

    Args:
        actors: they always end, and share only the stores.
        make_world: makes the world of one run, always the same, with stores that step on the given stage.
        check: called after each run.
        max_schedules: the approximate largest number of schedules, drawn at random.

    Raises:
        InterleavingFailed: a run failed.
    """
    return explore(lambda choices: _run(choices, actors, make_world, check), most=2,
                   limit=max_schedules and max(max_schedules // 2, 1))


def sample_schedules(actors: Actors, make_world: Callable[[Stage], Any], check: Check, *, schedules: int,
                     random: Random) -> int:
    """Run the actors under `schedules` random schedules, and return their number.

    Raises:
        InterleavingFailed: a run failed.
    """
    return sample(lambda choices: _run(choices, actors, make_world, check), schedules, most=_MOST_CHANGES,
                  seed=random.getrandbits(32))


def _run(choices: Choices, actors: Actors, make_world: Callable[[Stage], Any], check: Check) -> None:
    stage = Stage(choices)
    try:
        world = make_world(stage)
        check(world, stage.run({name: lambda act=act: act(world) for name, act in actors.items()}))  # type: ignore[misc]
    except Exception as error:  # an error of the code under test or of the check
        raise InterleavingFailed(f"{type(error).__name__}: {error}") from error


@attrs.define(eq=False)
class Turn:
    """One actor: whether it may run, and its current operation."""

    name: str
    mine: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    within: HistoryOperation | None = None

    def wait(self) -> None:
        assert self.mine.acquire(timeout=_PATIENCE_SECONDS), f"{self.name} never had its turn: another one is stuck"


class Stage:
    """The scheduler of the actors' turns.

    Attributes:
        now: the number of the step that was taken last, a clock for histories.
    """

    def __init__(self, choices: Choices) -> None:
        self.now: int = 0
        self._choices = choices
        self._left: list[Turn] = []
        self._of_thread = threading.local()
        self._results: dict[str, object] = {}
        self._ended = threading.Event()

    @property
    def turn(self) -> Turn | None:
        """The actor that calls; `None` off the stage, before and after a run."""
        found: Turn | None = getattr(self._of_thread, "turn", None)
        return found

    def run(self, actors: Mapping[str, Callable[[], object]]) -> dict[str, Any]:
        """Let all actors run to their end; the first begins.

        Returns:
            By actor, its result, or the library's error that it raised.

        Raises:
            AssertionError: an actor waits for something that is not a turn.
            BaseException: an actor raised an error outside the library's tree.
        """
        self._left = [Turn(name) for name in actors]
        for turn in self._left:
            threading.Thread(target=self._play, args=(turn, actors[turn.name]), daemon=True).start()
        self._left[0].mine.release()
        assert self._ended.wait(_PATIENCE_SECONDS), "an actor is stuck"
        for found in self._results.values():
            if isinstance(found, BaseException) and not isinstance(found, CompactlibError):
                raise found
        return self._results

    def step(self, request: Request, act: Callable[[], Any]) -> Any:
        """A `Step` for `StoreInFront` and `ObjectsInFront`: switch to another actor first, or not."""
        turn = self.turn
        if turn is None:
            return act()
        others = [each for each in self._left if each is not turn]
        chosen = self._choices.pick(f"{turn.name}: {request}", turn.name, *(each.name for each in others))
        if chosen != turn.name:
            next(each for each in others if each.name == chosen).mine.release()
            turn.wait()
        self.now += 1
        if turn.within is not None:
            turn.within.begin = turn.within.begin or self.now
        return act()

    def _play(self, turn: Turn, act: Callable[[], object]) -> None:
        self._of_thread.turn = turn
        turn.wait()
        try:
            self._results[turn.name] = act()
        except BaseException as error:  # raised by the waiting thread, or passed to the check
            self._results[turn.name] = error
        self._left.remove(turn)
        if self._left:
            chosen = self._choices.pick(f"{turn.name} has ended", *(each.name for each in self._left))
            next(each for each in self._left if each.name == chosen).mine.release()
        else:
            self._ended.set()


ABSENT: Final = "absent"
"""The value of an absent key."""


@attrs.define
class HistoryOperation:
    """One operation, from its first step to its last.

    Attributes:
        actor: its actor.
        name: its name.
        begin: the number of its first step.
        last: the number of its last step but the mark of its end.
        end: the number of the mark of its end; `None` if it failed or never ended: it may take effect at any time.
        writes: for each key the values that it may have written.
        reads: for each key the returned value.
        result: a note of the actor.
        failed: whether it was not acknowledged; an actor may set it for a refused operation.
    """

    actor: str
    name: str
    begin: int = 0
    last: int = 0
    end: int | None = None
    writes: dict[bytes, frozenset[Any]] = attrs.field(factory=dict)
    reads: dict[bytes, Any] = attrs.field(factory=dict)
    result: Any = None
    failed: bool = False

    def write(self, key: bytes, *values: Any) -> None:
        """Note the values of which the operation may have written one."""
        self.writes[key] = frozenset(values)

    def before(self, begin: int) -> bool:
        """Return whether the operation was acknowledged before the step `begin`."""
        return self.end is not None and self.end < begin

    def __str__(self) -> str:
        return f"{self.actor}: {self.name} [{self.begin}..{'?' if self.end is None else self.end}]"


class History:
    """The operations of one run, and the initial values.

    Args:
        stage: gives the times.
        initial: the values before the first step.

    Attributes:
        operations: in the order in which they began.
    """

    def __init__(self, stage: Stage, initial: Mapping[bytes, Any]) -> None:
        self.operations: list[HistoryOperation] = []
        self._stage = stage
        self._initial = dict(initial)

    @contextmanager
    def operation(self, actor: str, name: str) -> Iterator[HistoryOperation]:
        """Note an operation; its error is noted as its result, and raised. The operation counts as failed then."""
        noted = HistoryOperation(actor, name)
        self.operations.append(noted)
        turn = self._stage.turn
        assert turn is not None, "an operation is an actor's"
        turn.within = noted
        try:
            yield noted
        except BaseException as error:
            noted.result, noted.failed = error, True
            raise
        finally:
            turn.within = None
            noted.begin = noted.begin or self._stage.now + 1
            noted.last = self._stage.now
            self._stage.now += 1
        if not noted.failed:
            noted.end = self._stage.now

    def allowed(self, key: bytes, begin: int, end: int, *, without: HistoryOperation | None = None) -> frozenset[Any]:
        """Return the allowed results of a read of a key that began and ended at these steps.

        Args:
            key: the key.
            begin: the read's first step.
            end: its last step.
            without: an operation whose own write does not count.
        """
        writes = [each for each in self.operations if key in each.writes and each is not without]
        over = [each for each in writes if each.before(begin)]
        found: set[Any] = set()
        if not over:
            found.add(self._initial.get(key, ABSENT))
        for write in writes:
            if write.begin <= end and not (write.end is not None and any(
                    write.end < later.begin for later in over)):
                found |= write.writes[key]
        return frozenset(found)

    def check_reads(self) -> None:
        """Require that every read returned an allowed result.

        Raises:
            AssertionError: a read did not; the message has the read and the allowed results.
        """
        for read in self.operations:
            for key, value in read.reads.items():
                allowed = self.allowed(key, read.begin, read.last, without=read)
                assert value in allowed, (f"{read} found {value!r} under {key!r}; allowed: {_listed(allowed)}; "
                                          f"history: {self}")

    def check_final(self, state: Mapping[bytes, Any], keys: Iterable[bytes],
                    explain: Callable[[], str] = str) -> None:
        """Require that the final values are allowed.

        Raises:
            AssertionError: a value is not.
        """
        end = self._stage.now + 1
        for key in keys:
            value, allowed = state.get(key, ABSENT), self.allowed(key, end, end)
            assert value in allowed, (f"at the end {key!r} holds {value!r}; allowed: {_listed(allowed)}; "
                                      f"history: {self} {explain()}".rstrip())

    def __str__(self) -> str:
        return "; ".join(map(str, self.operations))


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(sorted(map(repr, values)))
