# SPDX-License-Identifier: Apache-2.0
"""The tree of schedules, walked depth first, without those that only exchange steps which commute.

Two steps commute if they touch no common key, or only read it. Schedules that differ in the order of commuting steps
alone are one and the same to every actor, so one of them is enough. Two known techniques find the others without
running them:

* *Source sets*: only where two steps conflict that nothing else had put in order, another actor is tried: one that can
  begin what would let the later of the two come first. (P. Abdulla and others, "Source sets", 2017, algorithm 1.)
* *Sleep sets*: an actor that was tried at a place is not tried again further down before a step that conflicts with
  its own. (P. Godefroid, 1996.)

The two go together. The older way of choosing whom to try (always the later step's actor) misses schedules once there
are sleep sets; comparing random programs with the run of every schedule found that in seconds. Whether the tree was
told everything that matters shows at once: the same choices have to lead to the same steps again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.tools.interleave.access import Access


class NotDeterministic(AssertionError):
    """The same choices led to other steps: an actor depends on time, randomness, or what an earlier run left behind."""


class _Node:
    """One place in the current schedule: who could go on here, and who has to be tried."""

    __slots__ = ("access", "actor", "clock", "sleeping", "to_try", "waiting")

    def __init__(self, waiting: dict[str, Access], sleeping: dict[str, Access], actor: str) -> None:
        self.waiting = waiting
        self.sleeping = sleeping
        self.actor = actor
        self.access = waiting[actor]
        self.to_try = {actor}
        # For each actor the number of its last step that had to come before this one, or is this one.
        self.clock: dict[str, int] | None = None


class ScheduleTree:
    """Chooses the steps of one run after the other until no schedule is left.

    Args:
        actors: their names; the first ones are preferred.
        reduce: leave out what only exchanges commuting steps. Without, every schedule is run.
    """

    def __init__(self, actors: Sequence[str], *, reduce: bool = True) -> None:
        self._order = list(actors)
        self._reduce = reduce
        self._path: list[_Node] = []
        self._depth = 0
        self._clocks: dict[str, dict[str, int]] = {}
        self._by_space: dict[str | bytes, list[int]] = {}

    def begin(self) -> None:
        """A new run begins."""
        self._depth = 0
        self._clocks = {name: {} for name in self._order}
        self._by_space = {}

    def choose(self, waiting: Mapping[str, Access], running: str | None) -> str | None:
        """Whose step is next; `None` if all that could follow was seen already."""
        depth = self._depth
        if depth < len(self._path):
            node = self._path[depth]
            if node.waiting.keys() != waiting.keys() or node.access != waiting[node.actor]:
                raise NotDeterministic(f"step {depth + 1} was a choice of {_listed(node.waiting)}, and is now one "
                                       f"of {_listed(waiting)}; give every run a fresh world, and no time or chance")
        else:
            sleeping = self._sleeping(depth)
            actor = self._first(waiting, sleeping, running)
            if actor is None:
                return None
            node = _Node(dict(waiting), sleeping, actor)
            if not self._reduce:
                node.to_try.update(waiting)
            self._path.append(node)
        self._take(node, depth)
        self._depth = depth + 1
        return node.actor

    def advance(self) -> bool:
        """Turn to the next schedule; `False` if there is none."""
        while self._path:
            node = self._path[-1]
            node.sleeping[node.actor] = node.access
            left = [name for name in self._order if name in node.to_try and name not in node.sleeping]
            if left:
                node.actor = left[0]
                node.access = node.waiting[node.actor]
                node.clock = None
                return True
            self._path.pop()
        return False

    def _sleeping(self, depth: int) -> dict[str, Access]:
        """Who was tried above, and has met nothing since that conflicts with the step it waits at."""
        if depth == 0 or not self._reduce:
            return {}
        above = self._path[depth - 1]
        return {name: access for name, access in above.sleeping.items()
                if name != above.actor and not access.meets(above.access)}

    def _first(self, waiting: Mapping[str, Access], sleeping: Mapping[str, Access], running: str | None) -> str | None:
        # The running actor goes on: it costs no hand-over, and the first schedules are the simple ones.
        if running is not None and running in waiting and running not in sleeping:
            return running
        return next((name for name in self._order if name in waiting and name not in sleeping), None)

    def _take(self, node: _Node, number: int) -> None:
        if not self._reduce:
            return
        if node.clock is None:
            node.clock, races = self._clock_and_races(node, number)
            for race in races:
                self._reverse(race, node, number)
        self._clocks[node.actor] = node.clock
        for span in node.access.spans:
            steps = self._by_space.setdefault(span.space, [])
            if not steps or steps[-1] != number:
                steps.append(number)

    def _clock_and_races(self, node: _Node, number: int) -> tuple[dict[str, int], list[int]]:
        """What came before this step by need; and the conflicting steps that only this conflict puts before it."""
        clock = dict(self._clocks[node.actor])
        races: list[int] = []
        near = {each for span in node.access.spans for each in self._by_space.get(span.space, ())}
        for earlier in sorted(near, reverse=True):
            other = self._path[earlier]
            if clock.get(other.actor, -1) < earlier and node.access.meets(other.access):
                races.append(earlier)
                for name, last in _clock(other).items():
                    if clock.get(name, -1) < last:
                        clock[name] = last
        clock[node.actor] = number
        return clock, races

    def _reverse(self, race: int, node: _Node, number: int) -> None:
        """Have an actor tried at the race's earlier step that can lead to the later one coming first."""
        at = self._path[race]
        # The steps since that do not need the earlier one, and then the later one itself.
        firsts: dict[str, int] = {}
        for place in range(race + 1, number):
            step = self._path[place]
            if _clock(step).get(at.actor, -1) < race:
                firsts.setdefault(step.actor, place)
        firsts.setdefault(node.actor, number)
        beginners = [name for name, place in firsts.items() if not any(
            other != name and first < place and self._needs(place, node, number, other) >= first
            for other, first in firsts.items())]
        if at.to_try.isdisjoint(beginners):
            at.to_try.add(node.actor if node.actor in beginners else beginners[0])

    def _needs(self, place: int, node: _Node, number: int, other: str) -> int:
        step = node if place == number else self._path[place]
        return _clock(step).get(other, -1)


def _clock(node: _Node) -> dict[str, int]:
    assert node.clock is not None, "a step that was taken has a clock"
    return node.clock


def _listed(waiting: Mapping[str, Access]) -> str:
    return "; ".join(f"{name}: {access}" for name, access in waiting.items())
