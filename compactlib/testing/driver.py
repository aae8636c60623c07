# SPDX-License-Identifier: Apache-2.0
"""What the suites must know of a store: a `Driver` of five methods, the `World` it lives in, the `Journal` it keeps.

A driver opens a store of one kind, does what a host does with it, and checks that what was acknowledged is there.
`check_compaction` holds the store to the contract of `Compaction`, `check_hazards` to what it acknowledged: it records,
kills, refuses, damages and interrupts. After a refusal
or an interrupt the store is closed and opened again; nobody goes on with the same object.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

import attrs

from compactlib._forks import OfOneProcess
from compactlib.clock import ManualClock
from compactlib.files import Files
from compactlib.kv import KVStore
from compactlib.objects import ObjectStore
from compactlib.testing.in_front import FilesInFront, ObjectsInFront, Request, Step, StoreInFront, act_at_once

NOW = 1_700_000_000.0
"""The time at which a world begins."""


class Closable(Protocol):
    """What a driver opens."""

    def close(self) -> None:
        """Let go of files and threads; may be called twice."""


StoreT = TypeVar("StoreT", bound=Closable)


class HostLock(OfOneProcess):
    """What a host does on one thread only, a driver does inside this lock. In a forked child it is free."""

    def __init__(self) -> None:
        super().__init__()
        self._inherit()

    def _inherit(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class WorldClock(ManualClock):
    """A clock that is moved by hand, and whose wall clock a hazard may put wrong.

    Attributes:
        off: gives how many seconds the wall clock is off; asked at each reading.
    """

    def __init__(self, now: float = NOW) -> None:
        super().__init__(now)
        self.off: Callable[[], float] = float

    def now(self) -> float:
        """Seconds since the epoch, right or wrong."""
        return super().now() + self.off()


@attrs.define
class World:
    """Where a store lives, and what it reaches the disk, other stores and the time through.

    Attributes:
        folder: an existing folder.
        clock: the time; sleeping moves it at once.
        step: called at each request of the store to its edges; a hazard replaces it.
        behind: carries out what reaches the disk; the local disk if `None`.
        kept: what outlives an opening and is not in the folder: stores in memory, say.
        mistake: makes a step for each opening, between the store and its disk; what it leaves out, the store has never
            asked for. None if `None`.
    """

    folder: Path
    clock: WorldClock = attrs.field(factory=WorldClock)
    step: Step = act_at_once
    behind: Files | None = None
    kept: dict[str, Any] = attrs.field(factory=dict)
    mistake: Callable[[], Step] | None = None

    @property
    def files(self) -> Files:
        """The disk, for the store that is opened."""
        files = FilesInFront(self._step, self.behind)
        return files if self.mistake is None else FilesInFront(self.mistake(), files)

    def keyed(self, name: str, make: Callable[[], KVStore]) -> KVStore:
        """The key-value store of that name, made once; each request of it is a step."""
        return StoreInFront(self._kept(name, make), self._step)

    def objects(self, name: str, make: Callable[[], ObjectStore]) -> ObjectStore:
        """The object store of that name, made once; each request of it is a step."""
        return ObjectsInFront(self._kept(name, make), self._step)

    def _kept(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def _step(self, request: Request, act: Callable[[], Any]) -> Any:
        return self.step(request, act)


@attrs.define(eq=False)
class Change:
    """One thing that a host tried.

    Attributes:
        what: a value of the driver's.
        acknowledged: whether the store has returned from it. If not, it may have happened or not.
    """

    what: Any
    acknowledged: bool = False


class Journal:
    """What a host tried, in order, and what of it the store acknowledged.

    Args:
        note: called with each change when it is tried and when it is acknowledged, to keep them in a recording.

    Attributes:
        changes: all of them.
    """

    def __init__(self, note: Callable[[Change], object] = bool) -> None:
        self.changes: list[Change] = []
        self._note = note

    @contextlib.contextmanager
    def trying(self, what: Any) -> Iterator[None]:
        """Inside it the store is asked; it is acknowledged if the block ends without an error.

        Args:
            what: a value that tells the driver's `check` what must be there; it is not changed any more.
        """
        change = Change(what)
        self.changes.append(change)
        self._note(change)
        yield
        change.acknowledged = True
        self._note(change)

    @classmethod
    def of(cls, notes: Sequence[Change]) -> Journal:
        """The journals, as one, as they were when the last of these notes was made: a second note acknowledges."""
        journal, found = cls(), dict[int, Change]()
        for note in notes:
            if id(note) in found:
                found[id(note)].acknowledged = True
            else:
                found[id(note)] = Change(note.what)
                journal.changes.append(found[id(note)])
        return journal


class Driver(Protocol[StoreT]):
    """Opens, uses and checks stores of one kind. Keep `act` small: it is called some ten thousand times.

    A driver may also have `has_peers = True`: several may have the store open at once, and each gets what it was told.
    What else `check_compaction` looks for stands at the head of `compactlib.testing.compactions`.
    For the hazard `readers` it also has `reader(world)`, which opens an object with `refresh()` and `close()` that only
    reads, and `check_reader(reader, journal)`, which is `check` for that one.
    """

    def open(self, world: World, settings: Any) -> StoreT:
        """Open the store of a world, empty the first time. It starts no thread.

        Args:
            world: its folder, files, clock and stores; everything that the store changes goes through them.
            settings: one of `settings()`.
        """

    def settings(self) -> Sequence[Any]:
        """Legal settings, each of which can open what another one wrote; the first is the usual one."""

    def act(self, store: StoreT, rng: Random, journal: Journal) -> None:
        """Do one thing that a host does: write, delete, compact, reclaim, each tried within the journal.

        Reads what it needs to know from the store, since an earlier act may have failed. Does the same for an equal
        state of the store and of `rng`. In several threads at once it does what a host's threads may do at once.
        """

    def check(self, store: StoreT, journal: Journal, *, damage: str) -> None:
        """Read back everything; raise `AssertionError` if what was acknowledged is missing or wrong.

        What was tried and not acknowledged may be there or not. Nothing that was never tried may be there.

        Args:
            store: just opened.
            journal: what was tried.
            damage: what was done to one file of the closed store, or `""`: `"flipped"`, `"zeroed"`, `"cut"`,
                `"missing"`, `"older"`. A named error is an answer then, too. A wrong answer is none, and neither is
                "never there" or "deleted" for what was acknowledged and not deleted. The exception is the end of a
                file that is still appended to: when it is `"cut"`, it is as if the last writes had never been synced.
                `"put back"`: the whole folder is an older copy. A store whose other stores have seen more says so by a
                named error; else it is the older store.
        """

    def policy(self) -> Any:
        """A policy that finds something to compact after a few acts, for `store.compact(policy=...)`.

        `None` for a store that compacts nothing.
        """
