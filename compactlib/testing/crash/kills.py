# SPDX-License-Identifier: Apache-2.0
"""Kill a process at every change to the disk, let its successor work and acknowledge, and only then let the power fail.

A killed process leaves its un-synced changes in the operating system's page cache: its successor finds them, builds on
them, and a power failure may still take them back. `explore` cannot see this, because it rebuilds what a disk holds; a
name that was found but never synced is there in its recovery and gone in its crash.

>>> import tempfile
>>> def first(folder, files):
...     files.create(folder / "journal").close()
...     files.sync_folder(folder)
>>> def successor(folder, files):
...     found = (folder / "journal").exists()
...     out = files.open(folder / "journal") if found else files.create(folder / "journal")
...     if not found:
...         files.sync_folder(folder)
...     out.write_at(0, [b"data"])
...     out.sync()
...     out.close()
...     files.acknowledge(b"data")
>>> def check(folder, acknowledged):
...     if acknowledged:
...         assert (folder / "journal").read_bytes() == b"data"
>>> try:
...     explore_kills(first, successor, check)
... except KillFailure as failure:
...     print(str(failure).partition(";")[0])
the first life was killed before change 2, and after a power failure in the state 3:-0 the folder is wrong

The journal that the successor found was made by the killed process, and its name was never made durable.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from compactlib.errors import InvalidInput
from compactlib.files.disk import StrPath
from compactlib.report import Printed
from compactlib.testing.crash.harness import Check, CrashFailure, explain, rebuilt, scratch_folder
from compactlib.testing.crash.operations import Recording
from compactlib.testing.crash.recorder import RecordingFiles
from compactlib.testing.crash.states import Tally, distinct_states
from compactlib.testing.faults.plan import Crash, FailingFiles, Fault

Prepare: TypeAlias = Callable[[Path], object]
"""Fills a folder with what is there, and durable, before the first life."""


class LifeFiles(FailingFiles):
    """The disk of one life: a `Files` that ends when the life does, and through which the life acknowledges."""

    def __init__(self, recorder: RecordingFiles, killed_at: int | None) -> None:
        super().__init__(recorder, faults=lambda number: Fault.CRASH_BEFORE if number == killed_at else None)
        self._recorder = recorder

    def acknowledge(self, value: Any) -> None:
        """Note that `value` is acknowledged now; after the kill nothing is."""
        if not self._crashed:
            self._recorder.acknowledge(value)


Life: TypeAlias = Callable[[Path, LifeFiles], object]
"""What a process does in the folder, through its files, from opening to closing; calls `files.acknowledge`."""


@attrs.frozen(kw_only=True)
class KillReport(Printed):
    """How much was tried.

    Attributes:
        kills: at how many changes the first life was killed.
        points: at how many points of the successors' lives the power failed.
        states_checked: combinations of losses in all.
        distinct: different folders among them, each given to the check once.
    """

    kills: int
    points: int
    states_checked: int
    distinct: int


class KillFailure(CrashFailure):
    """A folder was wrong after a kill, a successor and a power failure; the cause is what the check raised.

    Attributes:
        killed_at: before which change of the first life it was killed, from 1; `points=[killed_at]` runs it alone.
        state: the power failure; see `CrashFailure`.
        trace: both lives' changes around it, and the outcome of each.
    """

    def __init__(self, message: str, *, killed_at: int, state: str, trace: str) -> None:
        super().__init__(message, state=state, trace=trace)
        self.killed_at = killed_at


def explore_kills(first: Life, successor: Life, check: Check, *, prepare: Prepare | None = None,
                  points: range | list[int] | None = None, limit_per_point: int = 16, max_states: int | None = None,
                  rng: random.Random | None = None, scratch: StrPath | None = None) -> KillReport:
    """Kill `first` before each of its changes, run `successor` to its end on what is there, let the power fail.

    Power fails at every point from the kill to the end of the successor's life. Both lives must do the same work each
    time, and open what they lock in a `with`, so that a killed one gives its locks up.

    Args:
        first: the life that is killed; it also runs once to its end.
        successor: the next process: opens the folder, works, and acknowledges.
        check: given the folder after the power failure and what both lives had acknowledged before it; raises if
            something acknowledged is gone or the folder cannot be opened.
        prepare: fills the folder before.
        points: before which changes of the first life to kill it, counted from 1; all if not given.
        limit_per_point: combinations of losses to try at each point, >= 2; a sample where there are more.
        max_states: stop after as many distinct states; the kills are then spread over the first life.
        rng: chooses samples; seeded with 0 if not given.
        scratch: where to build the folders; see `explore`.

    Raises:
        KillFailure: the first state that the check refused.
        InvalidInput: a life changed the folder in another way than through its files.
    """
    chosen = rng or random.Random(0)
    tally = Tally()
    seen: set[tuple[bytes, object]] = set()
    kills = 0
    with scratch_folder(scratch) as base:
        changes, _, _ = _lives(base, prepare, None, first, successor)
        numbers = list(range(1, changes + 2) if points is None else points)
        if max_states is not None and points is None:
            chosen.shuffle(numbers)
        for number in numbers:
            if max_states is not None and tally.distinct >= max_states:
                break
            kills += 1
            _, recording, begins = _lives(base, prepare, number, first, successor)
            _check_states(recording, begins, number, check, chosen, limit_per_point, seen, tally, base, max_states)
    return KillReport(kills=kills, points=tally.points, states_checked=tally.states, distinct=tally.distinct)


def _lives(base: Path, prepare: Prepare | None, killed_at: int | None, first: Life,
           successor: Life) -> tuple[int, Recording, int]:
    """Both lives: how many changes the first one made, what was done, and how much of it by the first."""
    folder = base / "lives"
    folder.mkdir()
    try:
        if prepare is not None:
            prepare(folder)
        recorder = RecordingFiles(folder)
        life = LifeFiles(recorder, killed_at)
        try:
            first(folder, life)
        except Crash:
            pass
        else:
            if killed_at is not None and life.count >= killed_at:
                raise InvalidInput(f"the first life was killed before change {killed_at} and went on to its end: "
                                   f"something in it catches `BaseException` and does not raise it again")
        begins = recorder.done
        successor(folder, LifeFiles(recorder, None))
        return life.count, recorder.recording(), begins
    finally:
        shutil.rmtree(folder)


def _check_states(recording: Recording, begins: int, killed_at: int, check: Check, rng: random.Random,
                  limit_per_point: int, seen: set[tuple[bytes, object]], tally: Tally, base: Path,
                  max_states: int | None) -> None:
    context = tuple(repr(value) for _, value in recording.acknowledgements)
    points = range(begins, len(recording.operations) + 1)
    for candidate in distinct_states(recording, rng, limit_per_point, points, seen, tally, context):
        with rebuilt(candidate.model, candidate.choices, base / "after") as folder:
            try:
                check(folder, recording.acknowledged(candidate.state.point))
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as error:
                state, trace = str(candidate.state), explain(recording, candidate.state)
                raise KillFailure(
                    f"the first life was killed before change {killed_at}, and after a power failure in the state "
                    f"{state} the folder is wrong; {type(error).__name__}: {error}\n{trace}\n(the successor begins "
                    f"with change {begins}; explore_kills(..., points=[{killed_at}]) runs this kill alone)",
                    killed_at=killed_at, state=state, trace=trace) from error
        if max_states is not None and tally.distinct >= max_states:
            return
