# SPDX-License-Identifier: Apache-2.0
"""Crash a function at every point, and see whether what it left can be opened again.

`record` lets a function work on a folder and notes each change it makes to the disk. `explore` then rebuilds the
folder as it may stand after a crash at every point (see `crash_model` for what may be lost) and calls a check on
each. `explore_recovery` crashes the recovery from those crashes too. `replay` rebuilds one state for a debugger.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.files.disk import Files, LocalFiles, StrPath, list_folder
from compactlib.report import Printed
from compactlib.testing.crash.model import CrashModel, changes_of
from compactlib.testing.crash.operations import Recording
from compactlib.testing.crash.recorder import RecordingFiles, record
from compactlib.testing.crash.state import Choices, CrashState, Cut, Fate, Hole
from compactlib.testing.crash.states import Tally, distinct_states

__all__ = [
    "Check",
    "CrashFailure",
    "CrashReport",
    "CrashState",
    "Recording",
    "RecordingFiles",
    "Recover",
    "explain",
    "explore",
    "explore_recovery",
    "record",
    "replay",
]

Check: TypeAlias = Callable[[Path, Sequence[Any]], object]
"""Opens the folder, given what had been acknowledged before the crash, and raises if something is wrong."""

Recover: TypeAlias = Callable[[Path, Files], object]
"""Brings a folder back into order after a crash, changing it through the files alone."""

_SHARED_MEMORY = "/dev/shm"
_PREFIX = "compactlib-crash-"
_SHOWN_BEFORE = 10
_SHOWN_AFTER = 3
_SHOWN_PENDING = 50


@attrs.frozen(kw_only=True)
class CrashReport(Printed):
    """How much was checked.

    Attributes:
        points: between how many operations a crash was tried.
        complete_points: at how many of them every combination of losses was tried; at the others, a sample.
        states_checked: combinations in all.
        distinct: different contents of the folder among them, each given to the check once.
        recoveries: crashed recoveries only: how many first crashes were recovered from.
    """

    points: int
    complete_points: int
    states_checked: int
    distinct: int
    recoveries: int = 0


class CrashFailure(CompactlibError, AssertionError):
    """A folder was wrong after a crash; the cause is what the check (or the recovery) raised.

    Attributes:
        state: the crash, for `replay`; two with a slash between if the recovery crashed as well.
        trace: the operations around the crash and the outcome of each.
    """

    def __init__(self, message: str, *, state: str, trace: str) -> None:
        super().__init__(message)
        self.state = state
        self.trace = trace


def explore(recording: Recording, check: Check, *, rng: random.Random | None = None, limit_per_point: int = 128,
            points: Iterable[int] | None = None, scratch: StrPath | None = None) -> CrashReport:
    """Rebuild the folder after a crash at every point of a recording, and call the check on each.

    Folders with equal content, and as much acknowledged, are checked once. The check may change its folder.

    Args:
        recording: from `record`.
        check: given the rebuilt folder and what had been acknowledged before the crash; raises if something
            acknowledged is gone or the folder cannot be opened.
        rng: chooses among the states of a point that has too many; seeded with 0 if not given.
        limit_per_point: with at most so many combinations of losses at a point all are tried, else a sample.
        points: numbers of operations after which to crash; all if not given.
        scratch: where to build the folders; in /dev/shm where there is one, else in the folder for temporary files.

    Raises:
        CrashFailure: the first state that the check refused.
        InvalidInput: the limit is below 2, or a point lies outside the recording.
    """
    tally = Tally()
    with scratch_folder(scratch) as base:
        found = distinct_states(recording, rng or random.Random(0), limit_per_point, points, set(), tally)
        for number, candidate in enumerate(found):
            with (rebuilt(candidate.model, candidate.choices, base / f"crash-{number}") as folder,
                  explained(recording, candidate.state)):
                check(folder, recording.acknowledged(candidate.state.point))
    return _report(tally)


def explore_recovery(recording: Recording, recover: Recover, check: Check, *, rng: random.Random | None = None,
                     recoveries: int | None = 100, limit_per_point: int = 32, points: Iterable[int] | None = None,
                     scratch: StrPath | None = None) -> CrashReport:
    """Crash, recover, crash the recovery at every point, recover again, and only then call the check.

    Args:
        recording: from `record`.
        recover: brings a folder back into order; runs once recorded and once for each state of its own crash.
            Changes the folder through the files it is given.
        check: see `explore`.
        rng: see `explore`; also chooses the first crashes.
        recoveries: from how many first crashes, at most, to recover; from all distinct ones if `None`.
        limit_per_point: see `explore`; for the first crash and for the second.
        points: see `explore`; for the first crash.
        scratch: see `explore`.

    Raises:
        CrashFailure: the first state from which the recovery failed, or whose recovered folder the check refused.
        InvalidInput: see `explore`; or the recovery changed the folder in another way than through its files.
    """
    rng = rng or random.Random(0)
    first_states = [found.state for found in distinct_states(recording, rng, limit_per_point, points, set(), Tally())]
    if recoveries is not None and len(first_states) > recoveries:
        first_states = [first_states[place] for place in sorted(rng.sample(range(len(first_states)), recoveries))]
    tally = Tally()
    seen: set[tuple[bytes, object]] = set()
    model = CrashModel(recording)
    with scratch_folder(scratch) as base:
        for state in first_states:
            model.advance_to(state.point)
            with (rebuilt(model, model.choices(state), base / "first") as folder,
                  explained(recording, state)):
                again = record(folder, recover, ignore=recording.ignore)
            acknowledged = recording.acknowledged(state.point)
            for candidate in distinct_states(again, rng, limit_per_point, None, seen, tally, len(acknowledged)):
                with (rebuilt(candidate.model, candidate.choices, base / "second") as folder,
                      explained(recording, state, again, candidate.state)):
                    recover(folder, LocalFiles())
                    check(folder, acknowledged)
    return _report(tally, len(first_states))


def replay(recording: Recording, state: str | CrashState, folder: StrPath, *,
           recover: Recover | None = None) -> tuple[Any, ...]:
    """Rebuild in `folder` one state that was reported, and return what had been acknowledged before it.

    The recording may be made anew, if the function does the same operations in the same order each time.

    Args:
        recording: from `record`.
        state: as in `CrashFailure.state`.
        folder: where; made if it is not there, and must be empty.
        recover: for a state of `explore_recovery` (with a slash): the recovery that crashed.

    Raises:
        InvalidInput: no such state in this recording, `recover` is missing, or the folder is not empty.
    """
    first, slash, second = str(state).partition("/")
    parsed = CrashState.parse(first)
    os.makedirs(folder, exist_ok=True)
    if list_folder(folder):
        raise InvalidInput(f"{os.fspath(folder)} is not empty; give a new folder to rebuild a crash in")
    if slash:
        if recover is None:
            raise InvalidInput(f"the state {state} is that of a crashed recovery; give the recovery too")
        with scratch_folder(None) as base:
            replay(recording, parsed, base / "first")
            _write(record(base / "first", recover, ignore=recording.ignore), CrashState.parse(second), folder)
    else:
        _write(recording, parsed, folder)
    return recording.acknowledged(parsed.point)


def explain(recording: Recording, state: str | CrashState) -> str:
    """The operations around a crash, one a line, each with its outcome.

    Raises:
        InvalidInput: no such state in this recording.
    """
    parsed = state if isinstance(state, CrashState) else CrashState.parse(state)
    model = CrashModel(recording)
    model.advance_to(parsed.point)
    choices = model.choices(parsed)
    near = range(max(parsed.point - _SHOWN_BEFORE, 0), min(parsed.point + _SHOWN_AFTER, len(recording.operations)))
    pending = sorted({change_id.operation for change_id in choices})[-_SHOWN_PENDING:]
    lines: list[str] = []
    previous = -1
    for index in sorted({*near, *pending}):
        if index > previous + 1:
            lines.append("     ...")
        if index >= parsed.point > previous:
            lines.append("     -- crash --")
        previous = index
        fate = _fate(recording, index, model, choices) if index < parsed.point else "not reached"
        lines.append(f"{index:4} {recording.operations[index]}".ljust(60) + "  " + fate)
    if previous < parsed.point:
        lines.append("     -- crash --")
    return "\n".join(line.rstrip() for line in lines)


def _fate(recording: Recording, index: int, model: CrashModel, choices: Choices) -> str:
    words = []
    for change_id, change in changes_of(index, recording.operations[index]):
        half = {"new": "new name ", "old": "removal of old name "}.get(change_id.half, "")
        match choices.get(change_id):
            case None:
                words.append(f"{half}durable" if model.reaches(change) else f"{half}gone for good")
            case Fate.KEPT:
                words.append(f"{half}there")
            case Fate.LOST:
                words.append(f"{half}LOST")
            case Cut(size):
                words.append(f"TORN after {size} bytes")
            case Hole(block):
                words.append(f"block {block} of the file LOST")
    return ", ".join(words)


@contextlib.contextmanager
def explained(recording: Recording, state: CrashState, again: Recording | None = None,
              second: CrashState | None = None) -> Iterator[None]:
    """Turn whatever the check raises into a `CrashFailure` (pytest's own failures are no `Exception`)."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        text, trace = str(state), explain(recording, state)
        argument = ""
        if again is not None and second is not None:
            text, argument = f"{state}/{second}", ", recover=..."
            trace += "\n     == recovery ==\n" + explain(again, second)
        kept = len(recording.acknowledged(state.point))
        raise CrashFailure(f"after crash {text} the folder is wrong: {type(error).__name__}: {error}\n{trace}\n"
                           f"acknowledged before the crash: {kept}; rebuild the folder with "
                           f"replay(recording, {text!r}, folder{argument})", state=text, trace=trace) from error


@contextlib.contextmanager
def rebuilt(model: CrashModel, choices: Choices, folder: Path) -> Iterator[Path]:
    """The folder as it stands after a crash with these choices, inside the `with`."""
    folder.mkdir()
    model.write(choices, str(folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _write(recording: Recording, state: CrashState, folder: StrPath) -> None:
    model = CrashModel(recording)
    model.advance_to(state.point)
    model.write(model.choices(state), os.fspath(folder))


@contextlib.contextmanager
def scratch_folder(parent: StrPath | None) -> Iterator[Path]:
    """A folder of its own inside the `with`, in shared memory if there is some and no parent is given."""
    name = None
    if parent is None:
        # There may be no shared memory, or no room left in it; then the ordinary place for temporary files will do.
        with contextlib.suppress(OSError):
            name = tempfile.mkdtemp(prefix=_PREFIX, dir=_SHARED_MEMORY)
    if name is None:
        name = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name)


def _report(tally: Tally, recoveries: int = 0) -> CrashReport:
    return CrashReport(points=tally.points, complete_points=tally.complete_points, states_checked=tally.states,
                       distinct=tally.distinct, recoveries=recoveries)
