# SPDX-License-Identifier: Apache-2.0
"""Test one store in all hazards: `check_hazards(driver, folder)` runs the same driver through each hazard.

A life opens the store, acts some times, and closes it. Each hazard lets one failure happen in a life, at every place
where it can (`choices.explore`). It then closes the store, opens it again, and checks that every acknowledged change is
present and that the store still works. A failure prints its picks.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias
from unittest import mock

import attrs

from compactlib.clock import ManualClock
from compactlib.errors import Closed, CompactlibError, InvalidInput, Stale
from compactlib.kv import OutcomeUnknown
from compactlib.testing.choices import Choices, explore, sample, spread
from compactlib.testing.crash import LOCK_NAME, RecordingFiles, explore_crashes, explore_kills, record
from compactlib.testing.disk_model import Recording
from compactlib.testing.driver import Change, Driver, Journal, World, WorldClock
from compactlib.testing.failing import Failing, Killing, disk_error
from compactlib.testing.in_front import Killed, Request, Step, act_at_once
from compactlib.testing.interrupts import Interrupted
from compactlib.testing.stand_ins import Call, in_threads

_LOCK = type(threading.Lock())
_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")


@attrs.frozen
class Effort:
    """The size of a test.

    Attributes:
        acts: the number of acts of a life.
        histories: the largest number of histories of a hazard; all if `None`.
        most: the largest number of failures in a history.
        seed: draws acts and samples.
    """

    acts: int = 6
    histories: int | None = 60
    most: int = 1
    seed: int = 0


class Bench:
    """Makes worlds for one driver, each in a new folder below `folder` that is removed at the end."""

    def __init__(self, driver: Driver[Any], folder: Path, effort: Effort) -> None:
        self.driver: Driver[Any] = driver
        self.effort: Effort = effort
        self.usual: Any = driver.settings()[0]
        self._folder = folder
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def world(self) -> Iterator[World]:
        """Make a world for the time of the block."""
        folder = self._folder / f"world-{next(self._numbers)}"
        folder.mkdir(parents=True)
        try:
            yield World(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def recorded(self, folder: Path, files: RecordingFiles, *, like: World | None = None) -> World:
        """Make a world whose recording has a copy of its stores outside the folder after each of their changes: they
        lose nothing in a power failure. Its clock and these stores are those of `like`, if given.
        """
        world = attrs.evolve(like or World(folder), folder=folder, behind=files)

        def step(request: Request, act: Callable[[], Any]) -> Any:
            answer = act()
            if request.edge != "disk" and request.changes:
                files.acknowledge(_Elsewhere.of(world))
            return answer

        world.step = step
        return world

    def after_power(self, folder: Path, notes: Sequence[Any]) -> tuple[World, Journal]:
        """Make the world of a rebuilt folder, with its stores elsewhere as of the crash, and the journal until then."""
        elsewhere = [note for note in notes if isinstance(note, _Elsewhere)]
        world, journal = World(folder), Journal.of([note for note in notes if isinstance(note, Change)])
        return elsewhere[-1].given_to(world) if elsewhere else world, journal

    def live(self, world: World, journal: Journal, *, settings: Any = None, first: int = 0, acts: int | None = None,
             before_closing: Callable[[], object] = bool) -> None:
        """Run one life: open, act, close. Equal acts for equal `first`."""
        with self.opened(world, settings) as store:
            self.act(store, journal, range(first, first + (self.effort.acts if acts is None else acts)))
            before_closing()

    def act(self, store: Any, journal: Journal, names: Iterable[object]) -> None:
        """Let the driver act once for each name; equal names give equal acts."""
        for name in names:
            self.driver.act(store, Random(f"{self.effort.seed} {name}"), journal)

    @contextlib.contextmanager
    def opened(self, world: World, settings: Any = None) -> Iterator[Any]:
        """Open the store for the time of the block; after a failure it is closed without raising another error."""
        store = self.driver.open(world, self.usual if settings is None else settings)
        try:
            yield store
            store.close()
        except BaseException:
            with contextlib.suppress(CompactlibError, Killed):
                store.close()
            raise

    def inspect(self, world: World, journal: Journal) -> None:
        """Open the store, check it, act; then open and check it again."""
        with self.opened(world) as store:
            self.driver.check(store, journal, damage="")
            self.act(store, journal, [f"after {len(journal.changes)}"])
        self.check(world, journal)

    def check(self, world: World, journal: Journal, settings: Any = None) -> None:
        """Open the store and check it."""
        with self.opened(world, settings) as store:
            self.driver.check(store, journal, damage="")

    def inspect_after_power(self, folder: Path, notes: Sequence[Any]) -> None:
        self.inspect(*self.after_power(folder, notes))

    def history(self, life: Life) -> Callable[[Choices], None]:
        """Return a history: a life in a new world; then each request succeeds, and the store is inspected."""

        def run(choices: Choices) -> None:
            with self.world() as world:
                journal = Journal()
                note = life(choices, world, journal)
                world.step, world.clock.off = act_at_once, float
                try:
                    self.inspect(world, journal)
                except BaseException as error:
                    error.add_note(note or "after this life the store is wrong")
                    raise

        return run

    def explore(self, life: Life, *, divisor: int = 1, most: int | None = None) -> int:
        """Run the histories of a life, limited by a part of the effort; return their number."""
        return explore(self.history(life), most=self.effort.most if most is None else most, limit=self.share(divisor),
                       seed=self.effort.seed)

    def share(self, divisor: int) -> int | None:
        """Return a part of the effort's histories, for slow hazards."""
        return None if self.effort.histories is None else max(self.effort.histories // divisor, 2)


@attrs.frozen(eq=False)
class _Elsewhere:
    """The state of a world outside its folder at one moment: stores in memory, and the time."""

    kept: dict[str, Any]
    now: float

    @classmethod
    def of(cls, world: World) -> _Elsewhere:
        return cls(_copied(world.kept), ManualClock.now(world.clock))

    def given_to(self, world: World) -> World:
        """Return the world with a copy of this state."""
        clock = WorldClock(self.now)
        return attrs.evolve(world, kept=_copied(self.kept, clock), clock=clock)


def _copied(kept: Mapping[str, Any], clock: ManualClock | None = None) -> dict[str, Any]:
    """Copy stores in memory, with new locks, and with `clock` in place of their clock if given."""
    memo: dict[int, Any] = {}
    for held in (value for each in kept.values() for value in getattr(each, "__dict__", {}).values()):
        if isinstance(held, _LOCK):
            memo[id(held)] = threading.Lock()
        elif isinstance(held, ManualClock):
            memo[id(held)] = clock or held
    return copy.deepcopy(dict(kept), memo)


Hazard: TypeAlias = Callable[[Bench], int]
"""Runs its histories and returns their number; raises the first failure."""

Life: TypeAlias = Callable[[Choices, World, Journal], str | None]
"""Opens, uses and closes a store once or more often; may return a note for an error of the inspection after it."""


# ---------------------------------------------------------------------------------------------------- one bad request


def refusals(bench: Bench) -> int:
    """The disk or another store refuses a request: nothing done, half done, no room, done without an answer."""
    return _one_life(bench, Failing, CompactlibError)


def _one_life(bench: Bench, step_of: Callable[[Choices], Step], *ends: type[BaseException]) -> int:
    """Run histories of one life whose requests go through a step, and which an error of `ends` may end."""

    def life(choices: Choices, world: World, journal: Journal) -> None:
        world.step = step = step_of(choices)
        with contextlib.suppress(*ends):
            bench.live(world, journal)
        if isinstance(step, Failing):
            step.settle()

    return bench.explore(life)


def lost_answers(bench: Bench) -> int:
    """A key-value or object store refuses a request or loses its answer; the host keeps its object, which works again
    once the other store does.
    """

    def life(choices: Choices, world: World, journal: Journal) -> None:
        failing = Failing(choices)
        world.step = lambda request, act: act() if request.edge == "disk" else failing(request, act)

        def names() -> Iterator[object]:
            yield from range(bench.effort.acts)
            world.step = act_at_once
            failing.settle()
            yield "after the failure"

        _live_on(bench, world, journal, names())

    return bench.explore(life)


def _live_on(bench: Bench, world: World, journal: Journal, names: Iterable[object]) -> None:
    """Act once for each name with the same object, also after an error; after `Closed` and `Stale` with a new one.

    Once every request succeeds again, no act may fail.
    """
    with contextlib.ExitStack() as stack:
        store = None
        for name in names:
            try:
                store = store or stack.enter_context(bench.opened(world))
                bench.act(store, journal, [name])
            except (Closed, Stale):
                stack.close()
                store = None
            except CompactlibError:
                if world.step is act_at_once:
                    raise


def full_disk(bench: Bench) -> int:
    """From one request on the disk is full; it has room again once the store is closed."""

    def filling(choices: Choices) -> Step:
        full = False

        def step(request: Request, act: Callable[[], Any]) -> Any:
            nonlocal full
            if request.needs_room:
                full = full or choices.pick(str(request), "has room", "is the first without room") != "has room"
            return _without_room(request, act) if full else act()

        return step

    return _one_life(bench, filling, CompactlibError)


def _without_room(request: Request, act: Callable[[], Any]) -> Any:
    if request.needs_room:
        raise disk_error(errno.ENOSPC, request)
    return act()


def opened_on_a_full_disk(bench: Bench) -> int:
    """The owner ends at a request, and the next owner opens, reads and reclaims on a full disk."""

    def life(choices: Choices, world: World, journal: Journal) -> None:
        bench.live(world, journal)
        world.step = Killing(choices)
        with contextlib.suppress(Killed):
            bench.live(world, journal, first=bench.effort.acts)
        world.step = _without_room
        with bench.opened(world) as store:
            bench.driver.check(store, journal, damage="")
            if hasattr(store, "reclaim"):
                store.reclaim()
            bench.driver.check(store, journal, damage="")

    return bench.explore(life)


def kills(bench: Bench) -> int:
    """The process ends before or after a request; the next process opens the store."""
    return _one_life(bench, Killing, Killed)


def interrupts(bench: Bench) -> int:
    """Ctrl-C interrupts the store before or after a request."""

    def interrupting(choices: Choices) -> Step:
        def step(request: Request, act: Callable[[], Any]) -> Any:
            when = choices.pick(str(request), "runs on", "Ctrl-C before it", "Ctrl-C after it")
            answer = act() if when != "Ctrl-C before it" else None
            if when != "runs on":
                raise KeyboardInterrupt
            return answer

        return step

    return _one_life(bench, interrupting, KeyboardInterrupt, CompactlibError)


def interrupts_between(bench: Bench) -> int:
    """Ctrl-C interrupts the store between two instructions of the library, at places spread over a life."""
    # Each takes twenty times as long as the history of another hazard.
    return _interrupts(bench, bench.share(3), in_closing=False)


def interrupts_of_closing(bench: Bench) -> int:
    """Ctrl-C interrupts the closing of the store between two instructions; the host closes it again."""
    return _interrupts(bench, bench.share(1), in_closing=True)


def _interrupts(bench: Bench, most: int | None, *, in_closing: bool) -> int:
    def live(world: World, journal: Journal, interrupted: Interrupted) -> None:
        with contextlib.ExitStack() as stack:
            begin = partial(stack.enter_context, interrupted)
            if not in_closing:
                begin()
            bench.live(world, journal, before_closing=begin if in_closing else interrupted.stop)

    whole = Interrupted()
    with bench.world() as world:
        live(world, Journal(), whole)
    places = spread(range(1, whole.places + 1), most or whole.places)

    def life(choices: Choices, world: World, journal: Journal) -> str:
        interrupted = Interrupted(choices.pick("Ctrl-C", 0, *places))
        if interrupted.place:
            with contextlib.suppress(KeyboardInterrupt, CompactlibError):
                live(world, journal, interrupted)
        return f"Ctrl-C at {interrupted.where}"

    return explore(bench.history(life))


def clock_jumps(bench: Bench) -> int:
    """The wall clock is wrong for one reading, or from one reading until the life ends."""
    day = 86_400.0

    def life(choices: Choices, world: World, journal: Journal) -> None:
        for_good = 0.0

        def off() -> float:
            nonlocal for_good
            jump, lasts = choices.pick("the clock", (0.0, False), (day, False), (-day, False), (3650 * day, True),
                                       (-3650 * day, True))
            for_good += jump if lasts else 0.0
            return for_good if lasts else for_good + jump

        world.clock.off = off
        with contextlib.suppress(CompactlibError):
            bench.live(world, journal)

    return bench.explore(life)


_LIVES = 3


def other_settings(bench: Bench) -> int:
    """Each life has other settings than the life before."""

    def life(choices: Choices, world: World, journal: Journal) -> None:
        for number in range(_LIVES):
            settings = choices.pick(f"settings of life {number + 1}", *bench.driver.settings())
            with bench.opened(world, settings) as store:
                bench.driver.check(store, journal, damage="")
                bench.act(store, journal, range(number * bench.effort.acts, (number + 1) * bench.effort.acts))

    return bench.explore(life, divisor=3, most=bench.effort.most + 1)


def mixtures(bench: Bench) -> int:
    """Lives with other settings, a clock that jumps, refused requests and a kill: up to three of these at once."""

    def life(choices: Choices, world: World, journal: Journal) -> None:
        for number in range(_LIVES):
            settings = choices.pick(f"settings of life {number + 1}", *bench.driver.settings())
            failing, killing = Failing(choices), Killing(choices)
            world.step = lambda request, act, outer=killing, inner=failing: outer(request, partial(inner, request, act))
            world.clock.off = partial(choices.pick, "the clock", 0.0, 86_400.0, -86_400.0)
            with contextlib.suppress(CompactlibError, Killed):
                bench.live(world, journal, settings=settings, first=number * bench.effort.acts)
            world.step, world.clock.off = act_at_once, float
            failing.settle()
            bench.check(world, journal, settings)

    return sample(bench.history(life), bench.share(2) or 3_000, seed=bench.effort.seed)


# ------------------------------------------------------------------------------------------------------ power failures


def crashes(bench: Bench) -> int:
    """The power fails at each point; an unsynced change is kept, lost or torn."""
    recording, most = _recording(bench), bench.effort.histories
    return explore_crashes(recording, bench.inspect_after_power, points=_points(bench, recording, most and 5 * most),
                           **_bounds(bench, 24))


def crashes_of_recovery(bench: Bench) -> int:
    """The power fails, and again while the store is opened."""
    recording = _recording(bench)
    points, histories = _points(bench, recording, bench.share(5)), 0

    def crash_again(folder: Path, notes: Sequence[Any]) -> None:
        nonlocal histories

        def recover(folder: Path, files: RecordingFiles) -> None:
            with bench.opened(bench.recorded(folder, files, like=bench.after_power(folder, notes)[0])):
                pass

        histories += explore_crashes(
            record(folder, recover), lambda folder, more: bench.inspect_after_power(folder, [*notes, *more]),
            **_bounds(bench, 16))

    explore_crashes(recording, crash_again, points=points, limit_per_point=2, seed=bench.effort.seed)
    return histories


def kills_and_power(bench: Bench) -> int:
    """The process is killed, its successor acknowledges more, and then the power fails."""
    killed: World | None = None

    def life(first: int) -> Callable[[Path, RecordingFiles], object]:
        def live(folder: Path, files: RecordingFiles) -> None:
            nonlocal killed
            killed = bench.recorded(folder, files, like=killed if first else None)
            bench.live(killed, Journal(files.acknowledge), first=first)
        return live

    explore_them = partial(explore_kills, life(0), life(bench.effort.acts), bench.inspect_after_power,
                           seed=bench.effort.seed)
    most = bench.effort.histories
    if most is None:
        return explore_them()
    kills = [1 + point for point in _points(bench, _recording(bench), most)]
    return explore_them(points=kills, limit_per_point=2, power_failures=most // len(kills))


def _recording(bench: Bench) -> Recording:
    with bench.world() as world:
        return record(world.folder, lambda folder, files: bench.live(
            bench.recorded(folder, files), Journal(files.acknowledge)))


# ------------------------------------------------------------------------------- damaged, missing and older files


Damages: TypeAlias = Iterable[tuple[Path, Mapping[str, Callable[[], object]]]]
"""Paths, each with the ways to damage it by name; the name before " at " is the driver's `damage`."""


def damages(bench: Bench) -> int:
    """A closed store's file has a flipped bit, a zeroed block, or no tail: a read raises a named error, or is right."""

    def damage(path: Path, kind: str, at: int) -> None:
        data = bytearray(path.read_bytes())
        if kind == "flipped":
            data[at] ^= 1 << at % 8
        elif kind == "zeroed":
            data[at:at + 512] = bytes(len(data[at:at + 512]))
        else:
            del data[at:]
        path.write_bytes(data)

    return _put_back(bench, lambda folder, older: [
        (path, {f"{kind} at {at}": partial(damage, path, kind, at)
                for kind, step, most in (("flipped", 1, 12), ("zeroed", 512, 4), ("cut", 1, 4))
                for at in spread(range(0, path.stat().st_size, step), most)})
        for path in _files_of(folder)])


def missing_files(bench: Bench) -> int:
    """A file or a folder of a closed store is missing."""

    def remove(path: Path) -> None:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return _put_back(bench, lambda folder, older: [
        (path, {"missing": partial(remove, path)}) for path in sorted(folder.rglob("*")) if path.name != LOCK_NAME])


def older_files(bench: Bench) -> int:
    """A file of a closed store is an older copy, or was removed and is back."""

    def put_back(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def each(folder: Path, older: Path) -> Damages:
        for path in _files_of(older):
            now, data = folder / path.relative_to(older), path.read_bytes()
            if not now.exists() or now.read_bytes() != data:
                yield now, {"older": partial(put_back, now, data)}

    return _put_back(bench, each)


def older_folders(bench: Bench) -> int:
    """The whole folder of a closed store is an older copy: the older store, unless another store has seen more."""

    def put_back(folder: Path, older: Path) -> None:
        shutil.rmtree(folder)
        shutil.copytree(older, folder, symlinks=True)

    return _put_back(bench, lambda folder, older: [(folder, {"put back": partial(put_back, folder, older)})])


def _put_back(bench: Bench, damages_of: Callable[[Path, Path], Damages]) -> int:
    """Damage a copy of a closed store, whose older copy is at hand; then open, check, compact and check it, twice."""
    with bench.world() as first, bench.world() as before:
        journal = Journal()
        bench.live(first, journal)
        shutil.copytree(first.folder, before.folder, symlinks=True, dirs_exist_ok=True)
        bench.live(first, journal, first=bench.effort.acts)
        elsewhere = _Elsewhere.of(first)

        def history(choices: Choices) -> None:
            with bench.world() as empty:
                world, damage = elsewhere.given_to(empty), ""
                shutil.copytree(first.folder, world.folder, symlinks=True, dirs_exist_ok=True)
                for path, ways in damages_of(world.folder, before.folder):
                    picked = choices.pick(str(path.relative_to(world.folder)), "", *ways)
                    if picked:
                        ways[picked]()
                        damage = picked.partition(" at ")[0]
                        break
                for _ in range(2):
                    # Opening may raise a named error; every value that is read must be right.
                    with contextlib.suppress(CompactlibError), bench.opened(world) as store:
                        bench.driver.check(store, journal, damage=damage)
                        policy = bench.driver.policy()
                        with contextlib.suppress(CompactlibError):
                            if policy is not None:
                                store.compact(policy=policy)
                        bench.driver.check(store, journal, damage=damage)

        return explore(history, limit=bench.effort.histories, seed=bench.effort.seed)


# ---------------------------------------------------------------------------------------- several threads or owners


def threads(bench: Bench) -> int:
    """Four threads use one object, and a request fails or the process ends: each call returns or raises, and nothing
    is lost.
    """
    def life(choices: Choices, world: World, journal: Journal) -> None:
        failing, killing = Failing(choices), Killing(choices)
        calls, died_at = list[Call[None]](), list[int]()

        def step(request: Request, act: Callable[[], Any]) -> Any:
            time.sleep(0)  # another thread's turn
            try:
                return killing(request, lambda: failing(request, act))
            except Killed:
                died_at.append(len(journal.changes))
                raise

        world.step = step
        with contextlib.suppress(CompactlibError, Killed), bench.opened(world) as store:
            for thread in range(4):
                names = [f"{thread} {number}" for number in range(bench.effort.acts)]
                calls.append(Call(partial(bench.act, store, journal, names), "a thread's call"))
            for call in calls:
                call.wait()
        for call in calls:
            if call.error is not None and not isinstance(call.error, CompactlibError | Killed):
                raise call.error
        if died_at:
            del journal.changes[died_at[0]:]  # changes that other threads began after the process had ended
        failing.settle()

    return bench.explore(life, divisor=4, most=1)


def forks(bench: Bench) -> int:
    """The process forks at a request: the child gets a named error and changes nothing, and the parent works on."""

    def life(choices: Choices, world: World, journal: Journal) -> None:
        with bench.opened(world) as store:

            def step(request: Request, act: Callable[[], Any]) -> Any:
                if choices.pick(str(request), "runs on", "forks before it") != "runs on":
                    _require_refused(bench, store, world)
                return act()

            world.step = step
            bench.act(store, journal, range(bench.effort.acts))

    return bench.explore(life, divisor=3, most=1)


def paused_owners(bench: Bench) -> int:
    """The first owner is paused at a request; a second owner opens, makes one act or all, and closes; the first
    continues.

    A key-value store may also lose the answer to the request; the first owner then gets `OutcomeUnknown` after the
    second owner's work. With `has_peers = True` they are two peers, without a takeover. Acknowledgements of both count.
    """

    def life(choices: Choices, world: World, journal: Journal) -> None:
        later = Journal()
        paused_at: int | None = None

        def step(request: Request, act: Callable[[], Any]) -> Any:
            nonlocal paused_at
            if paused_at is not None:
                return act()
            loses = ("done, without an answer", "lost, without an answer") * (request.edge == "kv")
            answer, others = choices.pick(str(request), ("done", 0), *(
                (answer, acts) for acts in (bench.effort.acts, 1)
                for answer in ("done after the pause", *(loses if request.changes else ()))))
            if not others:
                return act()
            paused_at = len(journal.changes)
            if answer == "done, without an answer":
                act()
            try:
                with _unlocked():
                    bench.live(World(world.folder, clock=world.clock, kept=world.kept), later,
                               first=bench.effort.acts + (paused_at if others == 1 else 0), acts=others)
            finally:
                if not bench.driver.has_peers:
                    # The host of the first owner knows then what the second has done.
                    journal.changes += later.changes
            if answer in loses:
                raise OutcomeUnknown(operation=request.kind, path="a store under test", detail=answer)
            return act()

        world.step = step
        with contextlib.suppress(CompactlibError):
            _live_on(bench, world, journal, range(bench.effort.acts))
        world.step = act_at_once
        if paused_at is not None and bench.driver.has_peers:
            journal.changes[:] = _in_some_order(bench, world, journal.changes, paused_at, later.changes)

    return bench.explore(life)


def _in_some_order(bench: Bench, world: World, first: Sequence[Change], paused: int,
                   second: Sequence[Change]) -> Sequence[Change]:
    """Return the changes of two owners in an order that agrees with the store, or raise the last order's error.

    The change in which the first owner paused happened before, between or after the changes of the second owner; or one
    half of it (`halves(what)` of the driver) before and the other half after them. A change before may happen again
    after them.
    """
    wrong = AssertionError("no change was tried")
    before, split, after = first[:max(paused - 1, 0)], first[max(paused - 1, 0):paused], first[paused:]
    again = [attrs.evolve(change, acknowledged=False) for change in split]
    orders = [[*second[:place], *split, *second[place:]] for place in range(len(second) + 1)]
    for change in split:
        orders += [[Change(one, change.acknowledged), *second, Change(other, change.acknowledged)]
                   for one, other in bench.driver.halves(change.what)]
    for order in orders:
        journal = Journal(changes=[*before, *order, *again, *after])
        try:
            bench.check(world, journal)
        except AssertionError as error:
            wrong = error
        else:
            return journal.changes
    raise wrong


def readers(bench: Bench) -> int:
    """A reader opens the folder at a request of the owner, or is paused anywhere while the owner works: it reads the
    state before or after, and after `refresh` the owner's state.
    """
    driver = bench.driver
    if type(driver).reader is Driver.reader:
        return 1

    def opened_at_a_request(choices: Choices, world: World, journal: Journal) -> None:
        opened, wrong = list[Any](), list[BaseException]()

        def step(request: Request, act: Callable[[], Any]) -> Any:
            if journal.changes and not opened and not wrong \
                    and choices.pick(str(request), "runs on", "a reader opens") != "runs on":
                try:
                    opened.append(stack.enter_context(contextlib.closing(driver.reader(world))))
                    driver.check_reader(opened[0], journal)
                except BaseException as error:  # must not end the owner's call
                    wrong.append(error)
            return act()

        world.step = step
        with contextlib.ExitStack() as stack:
            bench.live(world, journal)
            world.step = act_at_once
            if wrong:
                raise wrong[0]
            for reader in opened:
                reader.refresh()
                driver.check_reader(reader, journal)

    def paused(choices: Choices, world: World, journal: Journal) -> None:
        bench.live(world, journal)
        with contextlib.ExitStack() as stack:
            store, whole = stack.enter_context(bench.opened(world)), Interrupted()
            with whole:
                stack.enter_context(contextlib.closing(driver.reader(world)))
            place = choices.pick("the reader", 0, *spread(range(1, whole.places + 1), bench.effort.histories or 500))
            known = len(journal.changes)

            def owner_acts() -> None:
                bench.act(store, journal, (f"{number} in the pause" for number in range(bench.effort.acts)))

            with Interrupted(place, owner_acts):
                reader = stack.enter_context(contextlib.closing(driver.reader(world)))
            driver.check_reader(reader, Journal(changes=[*journal.changes[:known], *(
                attrs.evolve(change, acknowledged=False) for change in journal.changes[known:])]))
            reader.refresh()
            driver.check_reader(reader, journal)

    return bench.explore(opened_at_a_request, divisor=2, most=1) + bench.explore(paused, divisor=2, most=1)


def _require_refused(bench: Bench, store: Any, world: World) -> None:
    """Use the store in a child, forked by a thread outside the store's calls; require named errors and no change."""
    ended = in_threads(1, lambda _: _used_in_a_fork(bench, store, world))
    assert ended == [0], {1: "no call of the child raised a named error", 3: "the child changed the disk",
                          -signal.SIGALRM: "the child did not end"}.get(ended[0], f"the child ended with {ended[0]}")


def _used_in_a_fork(bench: Bench, store: Any, world: World) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(20)
            world.step = _refuse_change
            for number in range(4):
                try:
                    bench.driver.act(store, Random(f"in a fork {number}"), Journal())
                except CompactlibError:
                    code = 0
            # Reading may raise or not, and changes nothing.
            with contextlib.suppress(CompactlibError, AssertionError):
                bench.driver.check(store, Journal(), damage="missing")
            with contextlib.suppress(CompactlibError):
                store.close()
        except _Changed:
            code = 3
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class _Changed(BaseException):
    """A forked child changed the store of its parent."""


def _refuse_change(request: Request, act: Callable[[], Any]) -> Any:
    if request.changes:
        raise _Changed(str(request))
    return act()


@contextlib.contextmanager
def _unlocked() -> Iterator[None]:
    """Make every lock of a folder free for the time of the block."""
    import fcntl

    with mock.patch.object(fcntl, "flock", lambda descriptor, operation: None):
        yield


# ---------------------------------------------------------------------------------------------------------- all of them

HAZARDS: Mapping[str, Hazard] = {
    hazard.__name__: hazard for hazard in (
        refusals, lost_answers, full_disk, opened_on_a_full_disk, kills, interrupts, interrupts_between,
        interrupts_of_closing, clock_jumps, other_settings, mixtures, crashes, crashes_of_recovery, kills_and_power,
        damages, missing_files, older_files, older_folders, threads, forks, paused_owners, readers)}
"""Every hazard by its name; the first line of its docstring describes the failure."""


def check_hazards(driver: Driver[Any], folder: Path, *, hazards: Iterable[str] = tuple(HAZARDS),
                  effort: Effort | None = None) -> dict[str, int]:
    """Run a store through hazards.

    Args:
        driver: opens, uses and checks it.
        folder: an existing folder, the parent of the worlds' folders.
        hazards: names of `HAZARDS`; all if not given.
        effort: the size of the test; `Effort()` takes seconds a hazard.

    Returns:
        The number of histories of each hazard. One history means that the hazard had no place to happen.

    Raises:
        InvalidInput: a name is not one of them; nothing was run.
        BaseException: the error of the first failed history, with its picks as a note.
    """
    hazards = list(hazards)
    if unknown := [name for name in hazards if name not in HAZARDS]:
        raise InvalidInput(f"there is no hazard {unknown[0]!r}; there are {', '.join(HAZARDS)}")
    bench = Bench(driver, folder, effort or Effort())
    histories: dict[str, int] = {}
    for name in hazards:
        try:
            histories[name] = HAZARDS[name](bench)
        except BaseException as error:
            error.add_note(f"hazard: {name} ({(HAZARDS[name].__doc__ or '').strip()}), seed {bench.effort.seed}")
            raise
    return histories


def _files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.name != LOCK_NAME]


def _points(bench: Bench, recording: Recording, most: int | None) -> list[int]:
    """Return points of a recording: one of each kind of operation, then a second of each kind, and so on.

    Operations are of one kind if they do the same to files whose names differ in numbers alone; the end is a kind, too.
    """
    rng, kinds = Random(bench.effort.seed), dict[tuple[str, str], list[int]]()
    for number, operation in enumerate(recording.operations):
        kinds.setdefault((operation.kind, _NUMBER.sub("0", os.path.basename(operation.path))), []).append(number)
    drawn = [[len(recording.operations)], *(rng.sample(numbers, len(numbers)) for numbers in kinds.values())]
    rng.shuffle(drawn)
    return [point for turn in itertools.zip_longest(*drawn) for point in turn if point is not None][:most]


def _bounds(bench: Bench, divisor: int) -> dict[str, Any]:
    return {"limit_per_point": 128 if bench.effort.histories is None else max(bench.effort.histories // divisor, 3),
            "seed": bench.effort.seed}
