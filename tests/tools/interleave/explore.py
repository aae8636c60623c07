# SPDX-License-Identifier: Apache-2.0
"""Run several actors' real code step by step, in every order of their steps or in many random ones.

A step is one operation of a key-value or an object store. Exactly one actor runs at any time, so a run is as
deterministic as its actors are, and a schedule that fails is shown as a story and can be replayed.

>>> from compactlib.kv import MemoryStore
>>> def world(stage):
...     store = SteppedStore(MemoryStore(), stage)
...     store.set(b"bank", b"ann", b"0")
...     return store
>>> def pay_in(store):
...     amount = int(store.get(b"bank", b"ann").value)
...     store.set(b"bank", b"ann", str(amount + 1).encode())
>>> def check(store, results):
...     assert store.get(b"bank", b"ann").value == b"2"
>>> try:
...     explore_schedules({"left": pay_in, "right": pay_in}, world, check)
... except InterleavingFailed as failed:
...     print(failed)
the schedule "left right*2 left" fails: AssertionError
     1  left   get bank ann → 0
     2    right  get bank ann → 0
     3    right  set bank ann 1
     4  left   set bank ann 1

What actors share beyond the stores is invisible here, and the reduction would be wrong about it: each of them gets its
own objects over the stores, as if it were a process of its own, and its own clock. See `docs/testing.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeAlias, TypeVar

import attrs

from compactlib.errors import InvalidInput
from tests.tools.interleave.access import Access, Span, cell
from tests.tools.interleave.failure import (
    Follow,
    InterleavingFailed,
    schedule_text,
    story_of,
    with_fewer_switches,
)
from tests.tools.interleave.stage import ActorStuck, Choose, Interval, Stage, Step
from tests.tools.interleave.stores import SteppedObjects, SteppedStore, take_step
from tests.tools.interleave.tree import NotDeterministic, ScheduleTree

__all__ = [
    "Access",
    "ActorStuck",
    "Interval",
    "InterleavingFailed",
    "InterleavingReport",
    "NotDeterministic",
    "Span",
    "Stage",
    "Step",
    "SteppedObjects",
    "SteppedStore",
    "cell",
    "explore_schedules",
    "replay_schedule",
    "sample_schedules",
    "take_step",
]

WorldT = TypeVar("WorldT")
Actors: TypeAlias = Mapping[str, Callable[[WorldT], object]]
"""Who takes part: a name, and what that actor does in the world."""
Check: TypeAlias = Callable[[WorldT, Mapping[str, Any]], object]
"""`check(world, results)` raises if a run went wrong; a result is what an actor returned, or the library's error."""

_SHRINK_RUNS = 300


@attrs.frozen
class InterleavingReport:
    """What was run.

    Attributes:
        schedules: runs that went to their end; each was checked.
        abandoned: runs given up half-way, because what would have followed was seen before.
        steps: steps of all of them.
        longest: steps of the longest one.
        complete: whether every order was run, apart from exchanges of steps that commute.
    """

    schedules: int
    abandoned: int
    steps: int
    longest: int
    complete: bool


def explore_schedules(actors: Actors[WorldT], make_world: Callable[[Stage], WorldT], check: Check[WorldT], *,
            reduce: bool = True, max_schedules: int | None = None) -> InterleavingReport:
    """Run the actors under every schedule; a run costs what its actors do, and 10 microseconds a change of actor.

    Args:
        actors: the names and what they do. They must end whatever the others do, and share nothing but the stores.
        make_world: makes the world of one run, always the same, with stores that step on the stage it is given.
        check: called after each run, off the stage.
        reduce: leave out schedules that only exchange steps which commute.
        max_schedules: stop after as many; the report then says that it is not complete.

    Raises:
        InterleavingFailed: a run failed; has the schedule and the story.
        NotDeterministic: runs do not repeat.
        ActorStuck: an actor waits for something off the stage.
    """
    theatre = Theatre(actors, make_world, check)
    tree = ScheduleTree(list(actors), reduce=reduce)
    with theatre:
        while True:
            tree.begin()
            theatre.perform(tree.choose)
            if not tree.advance():
                return theatre.report(complete=True)
            if max_schedules is not None and theatre.schedules >= max_schedules:
                return theatre.report(complete=False)


def sample_schedules(actors: Actors[WorldT], make_world: Callable[[Stage], WorldT], check: Check[WorldT], *,
           schedules: int, random: Random) -> InterleavingReport:
    """Run the actors under many random schedules: for more actors, or more steps, than can be explored.

    How often the actors change is itself drawn for each schedule, between nearly never and at every step, because some
    mistakes need long stretches of one actor and others a close fight.

    Args:
        actors: as for `explore_schedules`.
        make_world: as for `explore_schedules`.
        check: as for `explore_schedules`.
        schedules: how many.
        random: where chance comes from; the same one gives the same schedules.

    Raises:
        InterleavingFailed: a run failed; has the schedule and the story.
        ActorStuck: an actor waits for something off the stage.
    """
    with Theatre(actors, make_world, check) as theatre:
        for _ in range(schedules):
            theatre.perform(_at_random(Random(random.getrandbits(64))))
        return theatre.report(complete=False)


def replay_schedule(actors: Actors[WorldT], make_world: Callable[[Stage], WorldT], check: Check[WorldT],
                    schedule: str) -> str:
    """Run one schedule, as `InterleavingFailed.schedule` gives it, and give it as a story.

    Where the schedule names an actor that has ended, and after its end, the running actor goes on.

    Raises:
        InterleavingFailed: it fails.
        InvalidInput: the schedule names an actor that there is not.
    """
    names = Follow.parse(schedule)
    unknown = set(names) - set(actors)
    if unknown:
        raise InvalidInput(f"the schedule names {', '.join(sorted(unknown))}; the actors are {', '.join(actors)}")
    with Theatre(actors, make_world, check) as theatre:
        error = theatre.attempt(Follow(names).choose, telling=True)
        if error is not None:
            raise InterleavingFailed(schedule_text(theatre.stage.steps), story_of(theatre.stage.steps), error)
        return story_of(theatre.stage.steps)


def _at_random(random: Random) -> Choose:
    stays = random.choice((0.0, 0.5, 0.8, 0.95))

    def choose(waiting: Mapping[str, Access], running: str | None) -> str:
        if running is not None and running in waiting and random.random() < stays:
            return running
        return random.choice(list(waiting))

    return choose


class Theatre:
    """One stage for many runs, and the counts. For the explorers of this package."""

    def __init__(self, actors: Actors[Any], make_world: Callable[[Stage], Any], check: Check[Any]) -> None:
        if not actors:
            raise InvalidInput("there are no actors; give at least one")
        if not all(name.isidentifier() for name in actors):
            raise InvalidInput(f"actors are named {', '.join(actors)}; use letters, digits and underscores")
        self.stage: Stage = Stage(list(actors))
        self.schedules: int = 0
        self._actors = actors
        self._make_world = make_world
        self._check = check
        self._abandoned = 0
        self._steps = 0
        self._longest = 0

    def __enter__(self) -> Theatre:
        return self

    def __exit__(self, *_: object) -> None:
        self.stage.close()

    def perform(self, choose: Choose) -> None:
        """One run; if it fails, the plainest schedule found that fails like it is reported."""
        error = self.attempt(choose)
        if error is None:
            return
        names = with_fewer_switches([step.actor for step in self.stage.steps], self._failing, _SHRINK_RUNS)
        error = self.attempt(Follow(names).choose, telling=True) or error
        steps = self.stage.steps
        raise InterleavingFailed(schedule_text(steps), story_of(steps), error) from error

    def attempt(self, choose: Choose, *, telling: bool = False) -> Exception | None:
        """One run; what was wrong with it, if anything."""
        stage = self.stage
        world = self._make_world(stage)
        stage.telling = telling
        try:
            results = stage.run({name: _part(act, world) for name, act in self._actors.items()}, choose)
            self._steps += stage.now
            self._longest = max(self._longest, stage.now)
            if results is None:
                self._abandoned += 1
                return None
            self.schedules += 1
            self._check(world, results)
        except (NotDeterministic, ActorStuck):
            raise
        except Exception as error:  # whatever the code under test or the check raises is the finding
            return error
        return None

    def report(self, *, complete: bool) -> InterleavingReport:
        return InterleavingReport(self.schedules, self._abandoned, self._steps, self._longest, complete)

    def _failing(self, names: list[str]) -> list[str] | None:
        """The schedule that following these names gives, if it fails."""
        if self.attempt(Follow(names).choose) is None:
            return None
        return [step.actor for step in self.stage.steps]


def _part(act: Callable[[Any], object], world: Any) -> Callable[[], object]:
    return lambda: act(world)


