# SPDX-License-Identifier: Apache-2.0
"""A schedule that fails: as text, as a story, and with fewer changes of actor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise

from compactlib.errors import InvalidInput
from tests.tools.interleave.access import Access
from tests.tools.interleave.stage import Step

_PART = re.compile(r"(\w+)(?:\*(\d+))?")


class InterleavingFailed(AssertionError):
    """A schedule under which the check, or an actor, failed.

    Attributes:
        schedule: the schedule, for `replay_schedule`: `"writer*3 compactor writer"`.
        story: its steps and what came of them, a line each.
        error: what was raised.
    """

    def __init__(self, schedule: str, story: str, error: Exception) -> None:
        super().__init__(schedule, story, error)
        self.schedule = schedule
        self.story = story
        self.error = error

    def __str__(self) -> str:
        told = str(self.error)
        why = type(self.error).__name__ + (f": {told}" if told else "")
        return f'the schedule "{self.schedule}" fails: {why}\n{self.story}'


def schedule_text(steps: Sequence[Step]) -> str:
    """The actors in turn, runs of one written as `name*count`."""
    runs = [(name, len(list(run))) for name, run in groupby(step.actor for step in steps)]
    return " ".join(name if count == 1 else f"{name}*{count}" for name, count in runs)


def story_of(steps: Sequence[Step]) -> str:
    """A line for each step; the second actor is indented, the third more so."""
    indents = {name: "  " * place for place, name in enumerate(dict.fromkeys(step.actor for step in steps))}
    width = max(map(len, indents), default=0)
    lines = (f"{step.number:6}  {indents[step.actor]}{step.actor:{width}}  {step.access} {step.told}".rstrip()
             for step in steps)
    return "\n".join(lines)


class Follow:
    """Chooses as a schedule says.

    An actor that it names but that has ended is passed over; after its end, and so for a run that takes another course,
    the running actor goes on.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = iter(names)

    @staticmethod
    def parse(schedule: str) -> list[str]:
        """The names of a schedule written as text.

        Raises:
            InvalidInput: it is not written so.
        """
        names: list[str] = []
        for part in schedule.split():
            found = _PART.fullmatch(part)
            if found is None:
                raise InvalidInput(f"{part!r} is no part of a schedule; write it as 'writer*3 compactor writer'")
            names += [found[1]] * int(found[2] or 1)
        return names

    def choose(self, waiting: Mapping[str, Access], running: str | None) -> str:
        """See `Choose`."""
        for name in self._names:
            if name in waiting:
                return name
        return running if running is not None and running in waiting else next(iter(waiting))


def switches_of(names: Sequence[str]) -> int:
    """How often the actor changes."""
    return sum(left != right for left, right in pairwise(names))


def with_fewer_switches(names: list[str], failing: Callable[[list[str]], list[str] | None],
                        max_runs: int) -> list[str]:
    """A schedule that fails too and changes actors less often; each try is a run.

    Args:
        names: one that fails.
        failing: runs a schedule; the one it turned into if that failed.
        max_runs: how many tries, at most.
    """
    best, runs = names, 0
    improved = True
    while improved:
        improved = False
        for candidate in _merged(best):
            if runs >= max_runs:
                return best
            runs += 1
            found = failing(candidate)
            if found is not None and switches_of(found) < switches_of(best):
                best, improved = found, True
                break
    return best


def _merged(names: Sequence[str]) -> list[list[str]]:
    """The schedules with one stretch of an actor moved to that actor's next stretch, or to the one before."""
    runs = [(name, len(list(run))) for name, run in groupby(names)]
    found: list[list[str]] = []
    for place, (name, _) in enumerate(runs):
        later = next((other for other in range(place + 1, len(runs)) if runs[other][0] == name), None)
        if later is not None:
            moved = runs[place]
            rest = runs[:place] + runs[place + 1:]
            for target in (later - 1, place):
                order = [*rest[:target], moved, *rest[target:]] if target != place else [
                    *runs[:place + 1], runs[later], *runs[place + 1:later], *runs[later + 1:]]
                found.append([each for each, count in order for _ in range(count)])
    return found
