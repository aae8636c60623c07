# SPDX-License-Identifier: Apache-2.0
"""Crash a function at every point, and check that each remaining folder can be opened.

`record` runs a function on a folder and records each change that it makes to the disk. `explore_crashes` then rebuilds
every folder that a crash at any point may leave (`disk_model` defines the possible losses), and calls a check on each.
`explore_kills` kills a process at each of its changes, lets its successor work, and only then lets the power fail.

An error of a check is raised with a note: the operations around the crash, the fate of each, and the picks by which
`repeat_crash` rebuilds the folder.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from compactlib.errors import InvalidInput, Unsupported
from compactlib.files import OutFile, StrPath, list_folder
from compactlib.testing.choices import Choices
from compactlib.testing.disk_model import (
    ROOT,
    CrashModel,
    Fates,
    Image,
    Operation,
    Recording,
    changes_of,
    distinct_crashes,
)
from compactlib.testing.in_front import FilesInFront, Killed, Request

LOCK_NAME = "LOCK"
"""The file that `compactlib.files.folder_lock` locks; its content has no meaning."""

Parts: TypeAlias = tuple[str, ...]

_SHARED_MEMORY = "/dev/shm"
_SHOWN_BEFORE = 10
_SHOWN_AFTER = 3
_SHOWN_PENDING = 50
_CRASHES = itertools.count()


class RecordingFiles(FilesInFront):
    """A `Files` that records each operation and carries it out. Threads may share it, processes cannot.

    Args:
        folder: the only folder that it changes; its content is read into memory as the initial state.

    Attributes:
        changes: the number of changes that were requested so far.
        killed_before: the number, from 1, of the change before which the process is killed: it and every later request
            raise `Killed`; never if `None`.

    Raises:
        InvalidInput: a path is outside `folder`, was made without this object, or is a lock file.
        Unsupported: a folder is moved into another folder, which the crash model leaves out.
        StorageError: an operation failed on the disk; the bytes that it had written are recorded.
    """

    def __init__(self, folder: StrPath) -> None:
        super().__init__(self._record)
        self.changes: int = 0
        self.killed_before: int | None = None
        self._root = os.path.realpath(folder)
        self._lock = threading.RLock()
        self._operations: list[Operation] = []
        self._acknowledgements: list[tuple[int, Any]] = []
        self._initial = _read_image(self._root)
        self._folders = {number: dict(names) for number, names in self._initial.folders.items()}
        self._numbers = itertools.count(
            1 + max([ROOT, *self._initial.folders, *self._initial.texts, *self._initial.contents]))
        # By the open file: the path to show, and the number.
        self._outs: dict[OutFile, tuple[str, int]] = {}

    @property
    def done(self) -> int:
        """The number of operations recorded so far."""
        return len(self._operations)

    @property
    def is_killed(self) -> bool:
        """Whether the process was killed."""
        return self.killed_before is not None and self.changes >= self.killed_before

    def acknowledge(self, value: Any) -> None:
        """Record that `value` is acknowledged now: checks get it for every later crash. A killed process records none.
        """
        with self._lock:
            if not self.is_killed:
                self._acknowledgements.append((self.done, value))

    def _successor(self) -> RecordingFiles:
        """Return the disk of the next process, in the same recording. What is left of this process stays killed."""
        files = copy.copy(self)
        files.killed_before, files._step = None, files._record
        return files

    def recording(self) -> Recording:
        """Return the recording so far. Reads the folder to find changes made without this object.

        Raises:
            InvalidInput: the folder differs from the result of the recorded operations.
        """
        with self._lock:
            recording = Recording(self._initial, tuple(self._operations), tuple(self._acknowledgements))
            found = _read_image(self._root).paths()
        model, nothing_lost = _picked(recording, Choices({0: len(recording.operations)}))
        noted = model.image(nothing_lost).paths()
        wrong = min((path for path in noted.keys() | found.keys() if noted.get(path) != found.get(path)), default=None)
        if wrong is not None:
            how = "is new" if wrong not in noted else "is missing" if wrong not in found else "differs"
            raise InvalidInput(f"{self._root} was changed without the Files given to the function: {wrong} {how}; make "
                               f"every change through these files, or a crash cannot be rebuilt")
        return recording

    def _record(self, request: Request, act: Callable[[], Any]) -> Any:
        with self._lock:
            self.changes += request.changes
            if self.is_killed:
                raise Killed(f"before change {self.killed_before}; the request: {request}")
            return self._change_bytes(request, request.out, act) if request.out else self._change_names(request, act)

    def _change_bytes(self, request: Request, out: OutFile, act: Callable[[], Any]) -> Any:
        path, inode = self._outs[out]
        if request.kind not in ("write", "copy"):
            act()
            kind = "sync" if request.kind == "sync" else "truncate"
            self._operations.append(Operation(kind, path, ROOT, inode, offset=request.offset))
            return None
        try:
            return act()
        finally:
            # The bytes on the disk; a refused request may have written a part.
            data = os.pread(out.fileno(), request.size, request.offset)
            if data:
                self._operations.append(Operation("write", path, ROOT, inode, offset=request.offset, data=data))

    def _change_names(self, request: Request, act: Callable[[], Any]) -> Any:
        kind, path, target = request.kind, request.path, Parts()
        if kind in ("open", "sync folder"):
            path = os.path.realpath(path)
        if kind == "sync folder" and os.path.commonpath((path, self._root)) == path != self._root:
            return act()  # a folder above the recorded one, which is the same in all states
        parts = self._inside(path, root_too=kind == "sync folder")
        if kind in ("rename", "link"):
            target = self._inside(request.target)
        if kind == "rename" and parts[:-1] != target[:-1] and os.path.isdir(path) and not os.path.islink(path):
            raise Unsupported(f"the crash model has no folder moved into another one ({path} to {request.target}); "
                              "rename folders within their parent only")
        answer = act()
        shown = "/".join(parts) or "."
        if kind == "sync folder":
            self._operations.append(Operation(kind, shown, ROOT, self._number(parts)))
            return answer
        folder = self._number(parts[:-1])
        names = self._folders[folder]
        if kind in ("create", "symlink", "make folder"):
            inode = names[parts[-1]] = next(self._numbers)
            if kind == "make folder":
                self._folders[inode] = {}
        else:
            inode = self._number(parts)
        if kind in ("create", "open"):
            self._outs[answer] = shown, inode
        if kind == "open":
            return answer
        text, into = request.target, ROOT
        if kind in ("rename", "link"):
            text, into = "/".join(target), self._number(target[:-1])
            if kind == "rename" and self._folders[into].get(target[-1]) == inode:
                return answer  # a rename between two names of one file keeps both
        if kind in ("rename", "unlink", "remove folder"):
            del names[parts[-1]]
        if kind in ("rename", "link"):
            self._folders[into][target[-1]] = inode
        self._operations.append(Operation(kind, shown, folder, inode, text, into))
        return answer

    def _inside(self, path: str, *, root_too: bool = False) -> Parts:
        """Return the names from the folder to `path`; links in all but the last name are followed."""
        whole = os.path.abspath(path)
        whole = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        relative = os.path.relpath(whole, self._root)
        parts = tuple(relative.split(os.sep))
        if parts[0] == os.pardir or (relative == os.curdir and not root_too):
            raise InvalidInput(f"{path} is not below {self._root}, the folder that is recorded")
        if LOCK_NAME in parts:
            raise InvalidInput(f"{path} is a lock, which has no meaning after a crash; change it without these files")
        return () if relative == os.curdir else parts

    def _number(self, parts: Parts) -> int:
        number: int | None = ROOT
        for name in parts:
            number = self._folders[number].get(name) if number in self._folders else None
        if number is None:
            raise InvalidInput(f"{'/'.join(parts)} in {self._root} was made without the Files given to the function; "
                               "make it through these files, or a crash cannot be rebuilt")
        return number


Life: TypeAlias = Callable[[Path, RecordingFiles], object]
"""The work of a process in the folder, through its files, from opening to closing; calls `files.acknowledge`."""

Check: TypeAlias = Callable[[Path, Sequence[Any]], object]
"""Opens the folder, given the values acknowledged before the crash, and raises if something is wrong."""


def record(folder: StrPath, function: Life) -> Recording:
    """Run `function` on `folder` and record every change that it makes through its `RecordingFiles`.

    Args:
        folder: an existing folder; its content counts as durable. The function changes it for real.
        function: called once with the folder and the files; it calls `files.acknowledge(value)` when it acknowledges
            a change, for example that an entry is durable.

    Raises:
        InvalidInput: the function changed the folder without its files. Lock files are ignored: rebuilt folders lack
            them.
        Exception: the function failed.
    """
    recorder = RecordingFiles(folder)
    function(Path(folder), recorder)
    return recorder.recording()


def explore_crashes(recording: Recording, check: Check, *, limit_per_point: int = 128, seed: int = 0,
                    points: Iterable[int] | None = None) -> int:
    """Rebuild the folder after a crash at every point of a recording, and call the check on each.

    Folders with equal content and equal acknowledgements are checked once. The check may change its folder.

    Args:
        recording: from `record`.
        check: given the rebuilt folder and the values acknowledged before the crash; raises if something acknowledged
            is missing or the folder cannot be opened.
        limit_per_point: the largest number of combinations of losses tried at a point, a sample of all; >= 1.
        seed: chooses samples.
        points: numbers of operations after which to crash; all if not given.

    Returns:
        The number of different folders that were checked.

    Raises:
        BaseException: the error of the check, with a note that describes the crash.
        InvalidInput: the limit is below 1, or a point is outside the recording.
    """
    seen: set[object] = set()
    with _scratch_folder() as base:
        for crash in distinct_crashes(recording, random.Random(seed), limit_per_point, points, seen):
            _check_rebuilt(recording, *crash, Path(base), check, "after this crash the folder is wrong")
    return len(seen)


def explore_kills(first: Life, successor: Life, check: Check, *, prepare: Callable[[Path], object] | None = None,
                  points: Iterable[int] | None = None, power_failures: int | None = None, limit_per_point: int = 16,
                  seed: int = 0) -> int:
    """Kill `first` before each of its changes, run `successor` on the remaining folder, then let the power fail.

    A killed process leaves its unsynced changes in the operating system's page cache: its successor finds them, builds
    on them, and a power failure may still undo them. `explore_crashes` misses this, because it rebuilds a disk without
    a page cache.

    Both lives must do the same work each time, and take locks in a `with`, so that a killed life releases them.

    Args:
        first: the life that is killed: the change, and every later request, raises `Killed`.
        successor: the next process: opens the folder, works, and acknowledges.
        check: given the folder after the power failure and the values that both lives had acknowledged before it;
            raises if something acknowledged is missing or the folder cannot be opened.
        prepare: fills the folder first; its changes are durable.
        points: numbers, from 1, of the changes of the first life before which to kill it; all, and its end, if not
            given.
        power_failures: the number of points, drawn from the kill to the end of the successor's life, at which the
            power fails; all if not given.
        limit_per_point: combinations of losses to try at each point, >= 1; a sample of all.
        seed: chooses samples.

    Returns:
        The number of different folders that were checked.

    Raises:
        BaseException: the error of a life or the check, with a note that describes the kill and the power failure.
        InvalidInput: a life changed the folder without its files, or has caught `Killed`.
    """
    rng, seen = random.Random(seed), set[object]()
    with _scratch_folder() as base:

        def lives(killed_before: int | None) -> tuple[Recording, int, int]:
            """Run both lives; return the recording, the changes of the first, and the operation that begins the second.
            """
            folder = Path(base, "lives")
            folder.mkdir()
            try:
                if prepare is not None:
                    prepare(folder)
                files = RecordingFiles(folder)
                files.killed_before = killed_before
                try:
                    first(folder, files)
                except Killed:
                    pass
                else:
                    if files.is_killed:
                        raise InvalidInput(f"the first life was killed before change {killed_before} and ran to its "
                                           f"end; let no code in it catch `BaseException` without raising it again")
                changes, begins = files.changes, files.done
                successor(folder, files._successor())
                return files.recording(), changes, begins
            finally:
                shutil.rmtree(folder)

        for number in range(1, lives(None)[1] + 2) if points is None else points:
            try:
                recording, _, begins = lives(number)
                every: Sequence[int] = range(begins, len(recording.operations) + 1)
                if power_failures is not None and len(every) > power_failures:
                    every = rng.sample(every, power_failures)
                context = tuple(repr(value) for _, value in recording.acknowledgements)
                for crash in distinct_crashes(recording, rng, limit_per_point, every, seen, context):
                    _check_rebuilt(recording, *crash, Path(base), check, f"after this power failure the folder is "
                                   f"wrong; the successor begins with operation {begins}")
            except BaseException as error:
                error.add_note(f"the first life was killed before change {number}; "
                               f"explore_kills(..., points=[{number}]) runs this kill alone")
                raise
    return len(seen)


def repeat_crash(recording: Recording, picks: Mapping[int, int] | Choices, folder: StrPath) -> tuple[Any, ...]:
    """Rebuild one crash in `folder`, and return the values acknowledged before it.

    The recording may be a new one, if the function makes the same operations in the same order each time.

    Args:
        recording: from `record`; for a crash of a recovery, the recording of the recovery.
        picks: as in the note of a failure; `{0: 31}` is a crash after 31 operations that lost nothing. Or an object
            that picks: the number of operations, the usual fate of unsynced changes, and the fate of each.
        folder: an empty folder; made if it is missing.

    Raises:
        InvalidInput: this recording has no such crash, or the folder is not empty.
    """
    os.makedirs(folder, exist_ok=True)
    if list_folder(folder):
        raise InvalidInput(f"{os.fspath(folder)} is not empty; give a new folder to rebuild a crash in")
    choices = picks if isinstance(picks, Choices) else Choices(picks)
    model, fates = _picked(recording, choices)
    if not isinstance(picks, Choices) and choices.departures != {
            number: place for number, place in picks.items() if place}:
        raise InvalidInput(f"the picks {dict(picks)} do not fit the recording, which made {choices.departures} of them "
                           f"({choices.story()}); record the same work again")
    write_image(model.image(fates), folder)
    return recording.acknowledged(model.point)


def _picked(recording: Recording, choices: Choices) -> tuple[CrashModel, Fates]:
    model = CrashModel(recording)
    model.advance_to(choices.pick("operations before the crash", *range(len(recording.operations) + 1)))
    return model, model.pick(choices)


def _story(recording: Recording, model: CrashModel, fates: Fates) -> str:
    """Return the operations around the crash, and those with pending changes, each with its fate."""
    point, operations = model.point, recording.operations
    near = range(max(point - _SHOWN_BEFORE, 0), min(point + _SHOWN_AFTER, len(operations)))
    shown = sorted({*near, *sorted({change.index for change in fates})[-_SHOWN_PENDING:]})
    lines = [f"{index:4} {operations[index]}".ljust(60) + "  " + (
        _fate(index, operations[index], model, fates) if index < point else "not reached") for index in shown]
    lines.insert(sum(index < point for index in shown), "     -- crash --")
    return "\n".join(line.rstrip() for line in lines)


def _fate(index: int, operation: Operation, model: CrashModel, fates: Fates) -> str:
    durable = {change: "durable" if model.reaches(change) else "unreachable"
               for change in changes_of(index, operation) if change not in fates}
    return ", ".join(f"{change.half} {durable.get(change) or fates[change]}".strip()
                     for change in changes_of(index, operation))


def _check_rebuilt(recording: Recording, model: CrashModel, fates: Fates, image: Image, base: Path, check: Check,
                   wrong: str) -> None:
    """Call the check on the folder after one crash; its error gets a note that describes the crash."""
    folder, acknowledged = base / f"crash-{next(_CRASHES)}", recording.acknowledged(model.point)
    folder.mkdir()
    try:
        write_image(image, folder)
        check(folder, acknowledged)
    except BaseException as error:
        # pytest's own failures are no `Exception`.
        error.add_note(f"{wrong}:\n{_story(recording, model, fates)}\n"
                       f"acknowledged before the crash: {len(acknowledged)}; "
                       f"repeat_crash(recording, {model.picks(fates)}, folder) rebuilds the folder")
        raise
    finally:
        shutil.rmtree(folder)


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for the time of a block: in shared memory if possible, else among temporary files."""
    where = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="compactlib-crash-", dir=where)


def _read_image(folder: str) -> Image:
    """Read a folder with all its content. Numbers follow a walk by name; names of one file share its number."""
    folders, texts, contents = dict[int, dict[str, int]](), dict[int, str](), dict[int, bytes]()
    numbers = itertools.count(ROOT)
    known = {os.stat(folder).st_ino: next(numbers)}
    for base, below, names in os.walk(folder):
        inside = folders[known[os.stat(base).st_ino]] = {}
        for name in sorted({*below, *names} - {LOCK_NAME}):
            path = os.path.join(base, name)
            status = os.lstat(path)
            is_known = status.st_ino in known
            member = inside[name] = known[status.st_ino] if is_known else known.setdefault(status.st_ino, next(numbers))
            if is_known or stat.S_ISDIR(status.st_mode):
                continue
            if stat.S_ISLNK(status.st_mode):
                texts[member] = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                contents[member] = Path(path).read_bytes()
            else:
                raise InvalidInput(f"{path} is neither a file, a folder nor a symbolic link; "
                                   "the crash harness cannot rebuild it, keep it out of the folder")
    return Image(folders, texts, contents)


def write_image(image: Image, folder: StrPath) -> None:
    """Build the image in `folder`, which must exist and be empty: real files, symbolic links and hard links."""
    first_names: dict[int, str] = {}
    waiting = [(ROOT, os.fspath(folder))]
    while waiting:
        number, path = waiting.pop()
        for name, member in image.folders[number].items():
            place = os.path.join(path, name)
            if member in image.folders:
                os.mkdir(place)
                waiting.append((member, place))
            elif member in first_names:
                os.link(first_names[member], place, follow_symlinks=False)
            else:
                first_names[member] = place
                if member in image.texts:
                    os.symlink(image.texts[member], place)
                else:
                    with open(place, "wb") as file:
                        file.write(image.contents[member])
