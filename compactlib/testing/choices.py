# SPDX-License-Identifier: Apache-2.0
"""Explore failures: a run calls `pick` wherever one may happen, and an explorer tries the options.

The first option of a pick is the ordinary one. `explore` runs every history with at most `most` departures: picks of
another option. With a `limit` it draws a sample of the histories of each number of departures. A note on the error of a
failed run has the picks that repeat it.

>>> def transfer(choices):
...     money = {"from": 1, "to": 0}
...     money["from"] -= 1
...     if choices.pick("the process", "runs", "is killed") == "is killed":
...         return money
...     money["to"] += 1
...     return money
>>> def run(choices):
...     assert sum(transfer(choices).values()) == 1, "the money is gone"
>>> try:
...     explore(run)
... except AssertionError as error:
...     print(error, error.__notes__)
the money is gone ['picks: 0: the process -> is killed; run(Choices({0: 1})) repeats them']

The idea is that of exhaustive test generators and of the preemption bound of systematic concurrency testing: most
defects show with one or two departures (M. Musuvathi, S. Qadeer, "Iterative Context Bounding for Systematic Testing of
Multithreaded Programs", 2007).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import attrs

OptionT = TypeVar("OptionT")


@attrs.frozen
class Pick:
    """One pick of a run: its subject, the place of the option, the number of options, and the option as text."""

    name: str
    picked: int
    count: int
    option: str


class Choices:
    """Answers the picks of one run. Threads may share it; then the threads' order is the order of the picks.

    Any dictionary of small numbers is a script, so that Hypothesis can draw `Choices`, which then shrink to fewer and
    earlier departures: `dictionaries(integers(0, 199), integers(1, 8), max_size=4).map(Choices)`.

    Args:
        script: by the number of a pick, from 0, the place of its option; other picks take the ordinary option. A place
            beyond the last option wraps around through the options that are not ordinary.

    Attributes:
        made: the picks so far, in order.
    """

    def __init__(self, script: Mapping[int, int] | None = None) -> None:
        self.made: list[Pick] = []
        self._script = dict(script or {})
        self._lock = threading.Lock()

    def pick(self, name: str, ordinary: OptionT, *others: OptionT) -> OptionT:
        """Return one of the options.

        Args:
            name: the subject of the pick, for the story.
            ordinary: the option without a failure.
            others: the other options.
        """
        with self._lock:
            place = self._script.get(len(self.made), 0)
            if place > len(others):
                place = 1 + (place - 1) % len(others) if others else 0
            option = others[place - 1] if place else ordinary
            self.made.append(Pick(name, place, 1 + len(others), str(option)))
        return option

    @property
    def departures(self) -> dict[int, int]:
        """The picks that were not ordinary, as a script that repeats the run."""
        return {number: pick.picked for number, pick in enumerate(self.made) if pick.picked}

    def story(self) -> str:
        """The picks that were not ordinary, as text."""
        return "; ".join(f"{number}: {self.made[number].name} -> {self.made[number].option}"
                         for number in self.departures) or "none"

    def __repr__(self) -> str:
        return f"Choices({self.departures})"


Run: TypeAlias = Callable[[Choices], object]
"""One history: makes the same calls for equal picks, and raises if something is wrong."""


def explore(run: Run, *, most: int = 1, limit: int | None = None, seed: int = 0) -> int:
    """Run every history with at most `most` departures from the ordinary one, fewer departures first.

    Args:
        run: one history.
        most: the largest number of departures, >= 0.
        limit: the largest number of histories of each number of departures, drawn at random; all if `None`.
        seed: draws the sample.

    Returns:
        The number of histories.

    Raises:
        BaseException: the error of a run, with a note that has its picks and the call that repeats them.
    """
    rng = random.Random(seed)
    scripts: list[dict[int, int]] = [{}]
    runs = 0
    for departures in range(max(most, 0) + 1):
        following: list[dict[int, int]] = []
        for script in scripts:
            made = _repeat(run, script)
            runs += 1
            if departures < most:
                first = max(script, default=-1) + 1
                following += [{**script, number: place} for number in range(first, len(made))
                              for place in range(1, made[number].count)]
        scripts = following if limit is None or len(following) <= limit else rng.sample(following, limit)
    return runs


def sample(run: Run, histories: int, *, most: int = 3, seed: int = 0) -> int:
    """Run histories with a random number of departures, up to `most`, at random picks.

    Args:
        run: one history.
        histories: the number of histories in addition to the ordinary one.
        most: the largest number of departures, >= 1.
        seed: draws the departures; equal seeds draw equal histories.

    Returns:
        The number of histories.

    Raises:
        BaseException: as `explore`.
    """
    rng = random.Random(seed)
    counts = [pick.count for pick in _repeat(run, {})]
    histories = histories if counts else 0
    for _ in range(histories):
        numbers = rng.sample(range(len(counts)), min(rng.randint(1, most), len(counts)))
        _repeat(run, {number: rng.randint(1, max(counts[number] - 1, 1)) for number in numbers})
    return 1 + histories


def _repeat(run: Run, script: Mapping[int, int]) -> list[Pick]:
    """Run one history, and return its picks; an error gets the note."""
    choices = Choices(script)
    try:
        run(choices)
    except BaseException as error:
        error.add_note(f"picks: {choices.story()}; run({choices!r}) repeats them")
        raise
    return choices.made


def spread(values: Sequence[OptionT], most: int) -> list[OptionT]:
    """Return at most `most` of the values, evenly spread, with the first and the last."""
    if len(values) <= most or most < 2:
        return list(values[:most])
    return [values[number * (len(values) - 1) // (most - 1)] for number in range(most)]
