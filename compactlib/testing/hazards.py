# SPDX-License-Identifier: Apache-2.0
"""One store in every misfortune: `check_hazards(driver, folder)` runs the same driver through each hazard.

A life opens the store, acts some times, and closes it. Each hazard lets one thing go wrong in it, at every place where
it can (`choices.explore`), closes the store, opens it again, and checks that what was acknowledged is there and that
the store goes on. A failure prints its picks.
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
from compactlib.errors import Closed, CompactlibError, Stale
from compactlib.files import Files
from compactlib.kv import OutcomeUnknown
from compactlib.testing.choices import Choices, explore, sample, spread
from compactlib.testing.crash import RecordingFiles, explore_crashes, explore_kills, record
from compactlib.testing.disk_model import Recording
from compactlib.testing.driver import Change, Driver, Journal, World, WorldClock
from compactlib.testing.failing import Failing, Killing, disk_error
from compactlib.testing.in_front import Killed, Request, Step, act_at_once
from compactlib.testing.interrupts import Interrupted

AnyDriver: TypeAlias = Driver[Any]

_LOCK = type(threading.Lock())
_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")


@attrs.frozen
class Effort:
    """How much is tried.

    Attributes:
        acts: what a life does.
        histories: of each hazard, at most; all if `None`.
        most: how many things go wrong in one history, at most.
        seed: draws acts and samples.
        lives: over how many seeds, `seed` and those that follow, the histories are spread; each has other acts.
    """

    acts: int = 6
    histories: int | None = 60
    most: int = 1
    seed: int = 0
    lives: int = 1

    def of_life(self, number: int) -> Effort:
        """The effort for one of the lives."""
        share = None if self.histories is None else max(self.histories // self.lives, 1)
        return attrs.evolve(self, histories=share, seed=self.seed + number)


class Bench:
    """Worlds of one driver, one after the other, each in a folder of its own that is removed again.

    Args:
        driver: opens, acts, checks.
        folder: where worlds are made.
        effort: how much is tried.
        mistake: makes a step for each opening, which makes a mistake on purpose; see `World.mistake`.
    """

    def __init__(self, driver: AnyDriver, folder: Path, effort: Effort,
                 mistake: Callable[[], Step] | None = None) -> None:
        self.driver: AnyDriver = driver
        self.effort: Effort = effort
        self.usual: Any = driver.settings()[0]
        self._mistake = mistake
        self._folder = folder
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def world(self) -> Iterator[World]:
        """A new world."""
        folder = self._folder / f"world-{next(self._numbers)}"
        folder.mkdir(parents=True)
        try:
            yield self.world_in(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def world_in(self, folder: Path, files: Files | None = None, *, like: World | None = None) -> World:
        """The world of a folder whose disk is changed by `files`; by the local disk if `None`.

        Args:
            folder: its folder.
            files: its disk.
            like: has the time and the stores that are not in the folder; new ones if `None`.
        """
        return World(folder, behind=files, mistake=self._mistake, clock=WorldClock() if like is None else like.clock,
                     kept={} if like is None else like.kept)

    def recorded(self, folder: Path, files: RecordingFiles, *, like: World | None = None) -> World:
        """A world in a recording, which notes its stores that are not in the folder after each of their changes: a
        power failure takes nothing of them.
        """
        world = self.world_in(folder, files, like=like)

        def step(request: Request, act: Callable[[], Any]) -> Any:
            answer = act()
            if request.edge != "disk" and request.changes:
                files.acknowledge(_Elsewhere.of(world))
            return answer

        world.step = step
        return world

    def after_power(self, folder: Path, notes: Sequence[Any]) -> tuple[World, Journal]:
        """The world of a folder that was rebuilt, with its stores elsewhere as they were then, and what was tried."""
        elsewhere = [note for note in notes if isinstance(note, _Elsewhere)]
        world = self.world_in(folder)
        journal = Journal.of([note for note in notes if isinstance(note, Change)])
        return elsewhere[-1].given_to(world) if elsewhere else world, journal

    def live(self, world: World, journal: Journal, *, settings: Any = None, first: int = 0, acts: int | None = None,
             check: bool = False, before_closing: Callable[[], object] = bool) -> None:
        """One life: open, check if so asked, act, close. The same acts for the same `first`."""
        count = self.effort.acts if acts is None else acts
        with self.opened(world, settings) as store:
            if check:
                self.driver.check(store, journal, damage="")
            self.act(store, journal, range(first, first + count))
            before_closing()

    def act(self, store: Any, journal: Journal, names: Iterable[object]) -> None:
        """Let the driver act once for each name; the same for the same name."""
        for name in names:
            self.driver.act(store, Random(f"{self.effort.seed} {name}"), journal)

    def copy_of(self, folder: Path) -> Path:
        """A copy of a folder, for the caller to remove."""
        return Path(shutil.copytree(folder, self._folder / f"copy-{next(self._numbers)}", symlinks=True))

    @contextlib.contextmanager
    def opened(self, world: World, settings: Any = None) -> Iterator[Any]:
        """The store, open; if the block or closing it fails, it is closed again, and what that raises is not reported.
        """
        store = self.driver.open(world, self.usual if settings is None else settings)
        try:
            yield store
            store.close()
        except BaseException:
            with contextlib.suppress(CompactlibError, Killed):
                store.close()
            raise

    def inspect(self, world: World, journal: Journal, *, settings: Any = None) -> None:
        """Open the store, check it, act on; then open and check it once more."""
        with self.opened(world, settings) as store:
            self.driver.check(store, journal, damage="")
            self.act(store, journal, [f"after {len(journal.changes)}"])
        with self.opened(world, settings) as store:
            self.driver.check(store, journal, damage="")

    def explore(self, history: Callable[[Choices], object]) -> int:
        """Run histories as the effort says."""
        return explore(history, most=self.effort.most, limit=self.effort.histories, seed=self.effort.seed)


@attrs.frozen(eq=False)
class _Elsewhere:
    """What is in no folder, at some moment: stores in memory, and the time."""

    kept: dict[str, Any]
    now: float

    @classmethod
    def of(cls, world: World) -> _Elsewhere:
        return cls(_copied(world.kept), ManualClock.now(world.clock))

    def given_to(self, world: World) -> World:
        """The world, with a copy of it."""
        clock = WorldClock(self.now)
        return attrs.evolve(world, kept=_copied(self.kept, clock), clock=clock)


def _copied(kept: Mapping[str, Any], clock: ManualClock | None = None) -> dict[str, Any]:
    """Stores in memory, each with a lock of its own, and with another clock if one is given."""
    memo: dict[int, Any] = {}
    for held in (value for each in kept.values() for value in getattr(each, "__dict__", {}).values()):
        if isinstance(held, _LOCK):
            memo[id(held)] = threading.Lock()
        elif isinstance(held, ManualClock):
            memo[id(held)] = clock or held
    return copy.deepcopy(dict(kept), memo)


Hazard: TypeAlias = Callable[[Bench], int]
"""Runs its histories and returns how many there were; raises what is wrong."""


# ---------------------------------------------------------------------------------------------------- one bad request


def refusals(bench: Bench) -> int:
    """The disk or a store refuses a request: nothing done, half done, no room, done without an answer."""
    return _one_life(bench, Failing, CompactlibError)


def _one_life(bench: Bench, step_of: Callable[[Choices], Step], *ends: type[BaseException]) -> int:
    """Histories of one life in which every request takes a step, until the life ends; then the store is inspected."""

    def history(choices: Choices) -> None:
        with bench.world() as world:
            journal, world.step = Journal(), step_of(choices)
            with contextlib.suppress(*ends):
                bench.live(world, journal)
            if isinstance(world.step, Failing):
                world.step.settle()
            world.step = act_at_once
            bench.inspect(world, journal)

    return bench.explore(history)


def lost_answers(bench: Bench) -> int:
    """A key-value or object store refuses a request or loses its answer; the caller goes on with the same object, which
    works again once the store does.
    """

    def history(choices: Choices) -> None:
        with bench.world() as world, contextlib.ExitStack() as stack:
            journal, failing = Journal(), Failing(choices)
            world.step = lambda request, act: act() if request.edge == "disk" else failing(request, act)
            store: Any = None
            for number in range(bench.effort.acts):
                try:
                    store = store or stack.enter_context(bench.opened(world))
                    bench.act(store, journal, [number])
                except (Closed, Stale):
                    # It says that it is of no use any more.
                    stack.close()
                    store = None
                except CompactlibError:
                    pass
            world.step = act_at_once
            failing.settle()
            if store:
                with contextlib.suppress(Closed, Stale):
                    bench.act(store, journal, ["once it answers"])
            stack.close()
            bench.inspect(world, journal)

    return bench.explore(history)


def full_disk(bench: Bench) -> int:
    """From some request on the disk has no room for anything; it has room again once the store is closed."""

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
    """A process of a store ends at some request, and the next one opens, reads and reclaims on a disk without room."""

    def history(choices: Choices) -> None:
        with bench.world() as world:
            journal = Journal()
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
            world.step = act_at_once
            bench.inspect(world, journal)

    return bench.explore(history)


def kills(bench: Bench) -> int:
    """The process ends right before or after a request; the next one opens what is there."""
    return _one_life(bench, Killing, Killed)


def interrupts(bench: Bench) -> int:
    """Ctrl-C comes right before or after a request."""

    def interrupting(choices: Choices) -> Step:
        def step(request: Request, act: Callable[[], Any]) -> Any:
            when = choices.pick(str(request), "goes on", "Ctrl-C before it", "Ctrl-C after it")
            answer = act() if when != "Ctrl-C before it" else None
            if when != "goes on":
                raise KeyboardInterrupt
            return answer

        return step

    return _one_life(bench, interrupting, KeyboardInterrupt, CompactlibError)


def interrupts_between(bench: Bench) -> int:
    """Ctrl-C comes between two instructions of the library, at places spread over a life, before it is closed."""

    def live(world: World, journal: Journal, interrupted: Interrupted) -> None:
        with interrupted:
            bench.live(world, journal, before_closing=interrupted.stop)

    # Each takes twenty times as long as another history.
    return _interrupts(bench, live, _share(bench, 3))


def interrupts_of_closing(bench: Bench) -> int:
    """Ctrl-C comes between two instructions of closing the store, which is then closed again."""

    def live(world: World, journal: Journal, interrupted: Interrupted) -> None:
        with contextlib.ExitStack() as stack:
            bench.live(world, journal, before_closing=lambda: stack.enter_context(interrupted))

    return _interrupts(bench, live, _share(bench, 1))


def _interrupts(bench: Bench, live: Callable[[World, Journal, Interrupted], object], most: int | None) -> int:
    whole, journal = Interrupted(), Journal()
    with bench.world() as world:
        live(world, journal, whole)
        bench.inspect(world, journal)

    def history(choices: Choices) -> None:
        place = choices.pick("Ctrl-C", 0, *spread(range(1, whole.places + 1), most or whole.places))
        if not place:
            return  # as above
        with bench.world() as world:
            journal, interrupted = Journal(), Interrupted(place)
            try:
                with contextlib.suppress(KeyboardInterrupt, CompactlibError):
                    live(world, journal, interrupted)
                bench.inspect(world, journal)
            except BaseException as error:
                error.add_note(f"Ctrl-C came at {interrupted.where}")
                raise

    return explore(history)


def clock_jumps(bench: Bench) -> int:
    """The wall clock is wrong for one reading, or from one on until the life ends."""
    day = 86_400.0

    def history(choices: Choices) -> None:
        for_good = 0.0

        def off() -> float:
            nonlocal for_good
            jump, lasts = choices.pick("the clock", (0.0, False), (day, False), (-day, False), (3650 * day, True),
                                       (-3650 * day, True))
            for_good += jump if lasts else 0.0
            return for_good if lasts else for_good + jump

        with bench.world() as world:
            journal = Journal()
            world.clock.off = off
            with contextlib.suppress(CompactlibError):
                bench.live(world, journal)
            world.clock.off = float
            bench.inspect(world, journal)

    return bench.explore(history)


def other_settings(bench: Bench) -> int:
    """Each life has other settings than the one before."""
    lives = 3

    def history(choices: Choices) -> None:
        with bench.world() as world:
            journal = Journal()
            for life in range(lives):
                settings = choices.pick(f"settings of life {life + 1}", *bench.driver.settings())
                bench.live(world, journal, settings=settings, first=life * bench.effort.acts, check=True)
            bench.inspect(world, journal, settings=choices.pick("settings at last", *bench.driver.settings()))

    return explore(history, most=bench.effort.most + 1, limit=_share(bench, 3), seed=bench.effort.seed)


def mixtures(bench: Bench) -> int:
    """Several lives, each with other settings, a clock that jumps, refused requests and a kill: up to three at once."""
    lives = 3

    def history(choices: Choices) -> None:
        with bench.world() as world:
            journal = Journal()
            for life in range(lives):
                settings = choices.pick(f"settings of life {life + 1}", *bench.driver.settings())
                failing, killing = Failing(choices), Killing(choices)
                world.step = _one_in_the_other(killing, failing)
                world.clock.off = partial(choices.pick, "the clock", 0.0, 86_400.0, -86_400.0)
                with contextlib.suppress(CompactlibError, Killed):
                    bench.live(world, journal, settings=settings, first=life * bench.effort.acts)
                world.step, world.clock.off = act_at_once, float
                failing.settle()
                with bench.opened(world, settings) as store:
                    bench.driver.check(store, journal, damage="")
            bench.inspect(world, journal)

    return sample(history, _share(bench, 2) or 3_000, seed=bench.effort.seed)


def _one_in_the_other(outer: Step, inner: Step) -> Step:
    return lambda request, act: outer(request, lambda: inner(request, act))


# ------------------------------------------------------------------------------------------------------ power failures


def crashes(bench: Bench) -> int:
    """The power fails at each point; what was not synced is there, lost, or torn."""

    def check(folder: Path, notes: Sequence[Any]) -> None:
        bench.inspect(*bench.after_power(folder, notes))

    recording, most = _recording(bench), bench.effort.histories
    return explore_crashes(recording, check, points=_points(bench, recording, most and 5 * most), **_bounds(bench, 24))


def crashes_of_recovery(bench: Bench) -> int:
    """The power fails, and once more while the store is opened."""
    recording = _recording(bench)
    points, histories = _points(bench, recording, _share(bench, 5)), 0

    def crash_again(folder: Path, notes: Sequence[Any]) -> None:
        nonlocal histories

        def recover(folder: Path, files: RecordingFiles) -> None:
            with bench.opened(bench.recorded(folder, files, like=bench.after_power(folder, notes)[0])):
                pass

        def check(folder: Path, more: Sequence[Any]) -> None:
            bench.inspect(*bench.after_power(folder, [*notes, *more]))

        histories += explore_crashes(record(folder, recover), check, **_bounds(bench, 16))

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

    def check(folder: Path, notes: Sequence[Any]) -> None:
        bench.inspect(*bench.after_power(folder, notes))

    most, seed = bench.effort.histories, bench.effort.seed
    if most is None:
        return explore_kills(life(0), life(bench.effort.acts), check, seed=seed)
    kills = [1 + point for point in _points(bench, _recording(bench), most)]
    return explore_kills(life(0), life(bench.effort.acts), check, points=kills, limit_per_point=2, seed=seed,
                         power_failures=most // len(kills))


def _recording(bench: Bench) -> Recording:
    with bench.world() as world:
        return record(world.folder, lambda folder, files: bench.live(
            bench.recorded(folder, files), Journal(files.acknowledge)))


# ------------------------------------------------------------------------------------------ what was put back in part


def damages(bench: Bench) -> int:
    """A closed store's file has a flipped bit, a zeroed block, or no tail: a read names it, or is right."""

    def spoil(choices: Choices, folder: Path, older: Path) -> str:
        for path in _files_of(folder):
            data = path.read_bytes()
            ways = [("flipped", place) for place in spread(range(len(data)), 12)]
            ways += [("zeroed", place) for place in spread(range(0, len(data), 512), 4)]
            ways += [("cut", place) for place in spread(range(len(data)), 4)]
            damage, place = choices.pick(f"{path.name}, {len(data)} bytes", ("", 0), *ways)
            if damage:
                path.write_bytes(_damaged(data, damage, place))
                return damage
        return ""

    return _put_back(bench, spoil)


def missing_files(bench: Bench) -> int:
    """A file or a folder of a closed store is gone."""

    def spoil(choices: Choices, folder: Path, older: Path) -> str:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.name not in _MEANINGLESS and choices.pick(name, "is there", "is gone") == "is gone":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                return "missing"
        return ""

    return _put_back(bench, spoil)


def older_files(bench: Bench) -> int:
    """A file of a closed store is an older copy of itself, or is back after it was removed."""

    def spoil(choices: Choices, folder: Path, older: Path) -> str:
        for path in _files_of(older):
            name = path.relative_to(older)
            now = (folder / name).read_bytes() if (folder / name).exists() else None
            if now != path.read_bytes() \
                    and choices.pick(str(name), "is as it was", "is an older copy") != "is as it was":
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(path.read_bytes())
                return "older"
        return ""

    return _put_back(bench, spoil)


def older_folders(bench: Bench) -> int:
    """The whole folder of a closed store is an older copy: the older store, unless a store elsewhere has seen more."""

    def spoil(choices: Choices, folder: Path, older: Path) -> str:
        if choices.pick("the folder", "is as it was", "is an older copy") == "is as it was":
            return ""
        shutil.rmtree(folder)
        shutil.copytree(older, folder, symlinks=True)
        return "put back"

    return _put_back(bench, spoil)


def _damaged(data: bytes, damage: str, place: int) -> bytes:
    if damage == "cut":
        return data[:place]
    if damage == "zeroed":
        return data[:place] + bytes(len(data[place:place + 512])) + data[place + 512:]
    return data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1:]


def _put_back(bench: Bench, spoil: Callable[[Choices, Path, Path], str]) -> int:
    """Spoil a copy of a store that was closed, open it, check it, compact it, open it again, and check it again."""
    with bench.world() as first:
        journal = Journal()
        bench.live(first, journal)
        older = bench.copy_of(first.folder)
        bench.live(first, journal, first=bench.effort.acts)
        elsewhere = _Elsewhere.of(first)

        def history(choices: Choices) -> None:
            with bench.world() as empty:
                world = elsewhere.given_to(empty)
                shutil.copytree(first.folder, world.folder, symlinks=True, dirs_exist_ok=True)
                damage = spoil(choices, world.folder, older)
                for _ in range(2):
                    # It may refuse to open, by name; what it answers must be right.
                    with contextlib.suppress(CompactlibError), bench.opened(world) as store:
                        bench.driver.check(store, journal, damage=damage)
                        policy = bench.driver.policy()
                        with contextlib.suppress(CompactlibError):
                            if policy is not None:
                                store.compact(policy=policy)
                        bench.driver.check(store, journal, damage=damage)

        try:
            return explore(history, limit=bench.effort.histories, seed=bench.effort.seed)
        finally:
            shutil.rmtree(older)


# ---------------------------------------------------------------------------------------- several threads or owners


def threads(bench: Bench) -> int:
    """Four threads use one object, and a request fails or the process ends: each thread gets an answer or an error, and
    nothing is lost.
    """
    patience_seconds = 30.0

    def history(choices: Choices) -> None:
        with bench.world() as world:
            journal, failing = Journal(), Failing(choices)
            killing = Killing(choices)
            wrong, died_at = list[BaseException](), list[int]()

            def step(request: Request, act: Callable[[], Any]) -> Any:
                time.sleep(0)  # another thread's turn
                try:
                    return killing(request, lambda: failing(request, act))
                except Killed:
                    died_at.append(len(journal.changes))
                    raise

            world.step = step

            def use(store: Any, thread: int) -> None:
                try:
                    bench.act(store, journal, (f"{thread} {number}" for number in range(bench.effort.acts)))
                except (CompactlibError, Killed):
                    pass
                except BaseException as error:  # raised by the thread that waits
                    wrong.append(error)

            with contextlib.suppress(CompactlibError, Killed), bench.opened(world) as store:
                working = [threading.Thread(target=use, args=(store, thread), daemon=True) for thread in range(4)]
                for thread in working:
                    thread.start()
                for thread in working:
                    thread.join(patience_seconds)
                assert not any(thread.is_alive() for thread in working), "a thread got neither an answer nor an error"
            if wrong:
                raise wrong[0]
            if died_at:
                del journal.changes[died_at[0]:]  # what the other threads have begun since was never begun
            world.step = act_at_once
            failing.settle()
            bench.inspect(world, journal)

    return explore(history, limit=_share(bench, 4), seed=bench.effort.seed)


def forks(bench: Bench) -> int:
    """The process forks at a request: the child is refused by name, changes nothing, and the parent goes on."""

    def history(choices: Choices) -> None:
        with bench.world() as world:
            journal, opened = Journal(), list[Any]()

            def step(request: Request, act: Callable[[], Any]) -> Any:
                if opened and choices.pick(str(request), "goes on", "forks before it") != "goes on":
                    _require_refused(bench, opened[0], world)
                return act()

            world.step = step
            with bench.opened(world) as store:
                opened.append(store)
                bench.act(store, journal, range(bench.effort.acts))
            opened.clear()
            world.step = act_at_once
            bench.inspect(world, journal)

    return explore(history, limit=_share(bench, 3), seed=bench.effort.seed)


def paused_owners(bench: Bench) -> int:
    """An owner or a peer is paused at a request, another one opens, works or does one thing, closes, and the first one
    goes on.

    A key-value store may also lose the answer to the request, which the first one is told after the other one's work.
    Where a driver says `has_peers = True`, nobody takes over. What either acknowledges counts.
    """
    has_peers = getattr(bench.driver, "has_peers", False)

    def history(choices: Choices) -> None:
        with bench.world() as world:
            journal, later = Journal(), Journal()
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
                with _unlocked():
                    bench.live(World(world.folder, clock=world.clock, kept=world.kept), later,
                               first=bench.effort.acts + (paused_at if others == 1 else 0), acts=others)
                if answer in loses:
                    raise OutcomeUnknown(operation=request.kind, path="a store under test", detail=answer)
                return act()

            world.step = step
            _live_on(bench, world, journal)
            world.step = act_at_once
            if paused_at is not None and has_peers:
                journal.changes[:] = _in_some_order(bench, world, journal.changes, paused_at, later.changes)
            elif paused_at is not None:
                journal.changes[paused_at:paused_at] = later.changes
            bench.inspect(world, journal)

    return bench.explore(history)


def _live_on(bench: Bench, world: World, journal: Journal) -> None:
    """One life, which goes on with the same object after an error, unless that says that it is of no use any more."""
    with contextlib.suppress(CompactlibError), bench.opened(world) as store:
        for number in range(bench.effort.acts):
            try:
                bench.act(store, journal, [number])
            except (Closed, Stale):
                return
            except CompactlibError:
                continue


def _in_some_order(bench: Bench, world: World, first: Sequence[Change], paused: int,
                   second: Sequence[Change]) -> Sequence[Change]:
    """The changes of two owners in an order that the store agrees with.

    The change in which the first one paused happened before, between or after those of the second; or one half of it
    (`halves(what)` of the driver) before and the other after them. What was done before may be done once more after.

    Raises:
        AssertionError: there is no such order; that of the last one that was tried.
    """
    wrong = AssertionError("no change was tried")
    before, split, after = first[:max(paused - 1, 0)], first[max(paused - 1, 0):paused], first[paused:]
    again = [attrs.evolve(change, acknowledged=False) for change in split]
    orders = [[*second[:place], *split, *second[place:]] for place in range(len(second) + 1)]
    for change in split:
        halves = getattr(bench.driver, "halves", lambda what: ())(change.what)
        orders += [[Change(one, change.acknowledged), *second, Change(other, change.acknowledged)]
                   for one, other in halves]
    for order in orders:
        changes = [*before, *order, *again, *after]
        journal = Journal()
        journal.changes[:] = changes
        try:
            with bench.opened(world) as store:
                bench.driver.check(store, journal, damage="")
        except AssertionError as error:
            wrong = error
        else:
            return changes
    raise wrong


def readers(bench: Bench) -> int:
    """A reader opens the folder at a request of the owner, or is paused anywhere while the owner works: what it answers
    was so before or after, and once it has refreshed itself it answers as the owner does.
    """
    driver: Any = bench.driver

    def opened_at_a_request(choices: Choices) -> None:
        with bench.world() as world, contextlib.ExitStack() as stack:
            journal, opened, wrong = Journal(), list[Any](), list[BaseException]()

            def look() -> None:
                opened.append(stack.enter_context(contextlib.closing(driver.reader(world))))
                driver.check_reader(opened[0], journal)

            def step(request: Request, act: Callable[[], Any]) -> Any:
                if journal.changes and not opened and not wrong \
                        and choices.pick(str(request), "goes on", "a reader looks") != "goes on":
                    try:
                        look()
                    except BaseException as error:  # no error of the owner's
                        wrong.append(error)
                return act()

            world.step = step
            bench.live(world, journal)
            world.step = act_at_once
            if wrong:
                raise wrong[0]
            for reader in opened:
                reader.refresh()
                driver.check_reader(reader, journal)

    def paused(choices: Choices) -> None:
        with bench.world() as world, contextlib.ExitStack() as stack:
            journal = Journal()
            bench.live(world, journal)
            store = stack.enter_context(bench.opened(world))
            whole = Interrupted()
            with whole:
                stack.enter_context(contextlib.closing(driver.reader(world)))
            place = choices.pick("the reader", 0, *spread(range(1, whole.places + 1), bench.effort.histories or 500))
            known = len(journal.changes)

            def meanwhile() -> None:
                bench.act(store, journal, (f"{number} meanwhile" for number in range(bench.effort.acts)))

            with Interrupted(place, meanwhile):
                reader = stack.enter_context(contextlib.closing(driver.reader(world)))
            during = Journal()
            during.changes[:] = [*journal.changes[:known], *(
                attrs.evolve(change, acknowledged=False) for change in journal.changes[known:])]
            driver.check_reader(reader, during)
            reader.refresh()
            driver.check_reader(reader, journal)

    return (explore(opened_at_a_request, limit=_share(bench, 2), seed=bench.effort.seed)
            + explore(paused, limit=_share(bench, 2), seed=bench.effort.seed))


def _require_refused(bench: Bench, store: Any, world: World) -> None:
    """Use the store in a child that another thread forks, which is in none of the store's calls.

    Raises:
        AssertionError: the child was not refused by name, changed the disk, or did not end.
    """
    ended: list[int] = []
    forking = threading.Thread(target=lambda: ended.append(_used_in_a_fork(bench, store, world)))
    forking.start()
    forking.join()
    assert ended == [0], {1: "the child was not refused by name", 3: "the child changed the disk",
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
            # Reading may be refused or not, and changes nothing.
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
    """A forked child changed what its parent has open."""


def _refuse_change(request: Request, act: Callable[[], Any]) -> Any:
    if request.changes:
        raise _Changed(str(request))
    return act()


@contextlib.contextmanager
def _unlocked() -> Iterator[None]:
    """Inside it every lock of a folder is free for the taking."""
    import fcntl

    with mock.patch.object(fcntl, "flock", lambda descriptor, operation: None):
        yield


# ---------------------------------------------------------------------------------------------------------- all of them

_MEANINGLESS = frozenset({"LOCK"})

HAZARDS: Mapping[str, Hazard] = {
    hazard.__name__: hazard for hazard in (
        refusals, lost_answers, full_disk, opened_on_a_full_disk, kills, interrupts, interrupts_between,
        interrupts_of_closing, clock_jumps, other_settings, mixtures, crashes, crashes_of_recovery, kills_and_power,
        damages, missing_files, older_files, older_folders, threads, forks, paused_owners, readers)}
"""Every hazard by its name; the first line of each says what goes wrong."""


def check_hazards(driver: AnyDriver, folder: Path, *, hazards: Iterable[str] = tuple(HAZARDS),
                  effort: Effort | None = None, mistake: Callable[[], Step] | None = None) -> dict[str, int]:
    """Put a store through every misfortune.

    Args:
        driver: opens, uses and checks it.
        folder: an existing folder in which worlds are made.
        hazards: which, by name; all of `HAZARDS` if not given.
        effort: how much is tried; `Effort()` takes seconds a hazard.
        mistake: makes a step for each opening, between the store and the disk, which makes a mistake, to see that the
            hazards find it.

    Returns:
        How many histories each hazard took. One alone for each life: the hazard found no place where it can happen.

    Raises:
        BaseException: the first history that failed, with its picks as a note.
    """
    whole = effort or Effort()
    histories = dict.fromkeys(hazards, 0)
    for name in histories:
        for number in range(whole.lives):
            share = whole.of_life(number)
            try:
                histories[name] += HAZARDS[name](Bench(driver, folder, share, mistake))
            except BaseException as error:
                error.add_note(f"hazard: {name} ({(HAZARDS[name].__doc__ or '').strip()}), seed {share.seed}")
                raise
    return histories


def _files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.name not in _MEANINGLESS]


def _share(bench: Bench, divisor: int) -> int | None:
    """So much of the histories that are allowed; for hazards that are dear."""
    return None if bench.effort.histories is None else max(bench.effort.histories // divisor, 1)


def _points(bench: Bench, recording: Recording, most: int | None) -> list[int]:
    """Points of a recording at which the power fails, one before each kind of change before a second one of any kind.

    Of one kind are changes that do the same to files whose names differ in numbers alone; the end is one, too.
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
