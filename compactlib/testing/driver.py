# SPDX-License-Identifier: Apache-2.0
"""The interface between a store and the suites: a `Driver`, its `World`, and its `Journal`.

A driver opens a store of one kind, acts as its host, and checks that every acknowledged change is present.
`check_compaction` tests the store against the contract of `Compaction`, `check_hazards` against its acknowledgements:
it crashes, kills, refuses, damages and interrupts. After a refusal or an interrupt the suites close the store and open
it again; they never continue with the same object.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import attrs

from compactlib._forks import OfOneProcess
from compactlib.clock import ManualClock
from compactlib.files import Files
from compactlib.kv import KVStore
from compactlib.objects import ObjectStore
from compactlib.testing.crash import LOCK_NAME
from compactlib.testing.in_front import FilesInFront, ObjectsInFront, Request, Step, StoreInFront, act_at_once

NOW = 1_700_000_000.0
"""The time at which a world begins."""


class Closable(Protocol):
    """A store that a driver has opened."""

    def close(self) -> None:
        """Release files and threads; may be called twice."""


StoreT = TypeVar("StoreT", bound=Closable)


class HostLock(OfOneProcess):
    """A lock for the calls that a host makes on one thread only. In a forked child it is free."""

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
    """A manual clock whose wall clock a hazard may set wrong.

    Attributes:
        off: returns the error of the wall clock, seconds; called at each reading.
    """

    def __init__(self, now: float = NOW) -> None:
        super().__init__(now)
        self.off: Callable[[], float] = float

    def now(self) -> float:
        """Seconds since the epoch, right or wrong."""
        return super().now() + self.off()


@attrs.define
class World:
    """The folder, the disk, the other stores and the clock of a store.

    Attributes:
        folder: an existing folder.
        clock: the time; sleeping moves it at once.
        step: called at each request of the store to a disk or another store; a hazard replaces it.
        behind: carries out the requests to the disk; the local disk if `None`.
        kept: objects that outlive an opening and are outside the folder: stores in memory, say.
    """

    folder: Path
    clock: WorldClock = attrs.field(factory=WorldClock)
    step: Step = act_at_once
    behind: Files | None = None
    kept: dict[str, Any] = attrs.field(factory=dict)

    @property
    def files(self) -> Files:
        """The disk of the store."""
        return FilesInFront(self._step, self.behind)

    def keyed(self, name: str, make: Callable[[], KVStore]) -> KVStore:
        """Return the key-value store of a name, made once; each request to it is a step."""
        return StoreInFront(self._kept(name, make), self._step)

    def objects(self, name: str, make: Callable[[], ObjectStore]) -> ObjectStore:
        """Return the object store of a name, made once; each request to it is a step."""
        return ObjectsInFront(self._kept(name, make), self._step)

    def _kept(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def _step(self, request: Request, act: Callable[[], Any]) -> Any:
        return self.step(request, act)


@attrs.define(eq=False)
class Change:
    """One change that a host tried.

    Attributes:
        what: a value of the driver.
        acknowledged: whether the store returned from the change. Otherwise its outcome is unknown.
    """

    what: Any
    acknowledged: bool = False


class Journal:
    """The changes that a host tried, in order.

    Args:
        note: called with each change when it is tried and when it is acknowledged, to put it into a recording.
        changes: those before.

    Attributes:
        changes: all changes.
    """

    def __init__(self, note: Callable[[Change], object] = bool, *, changes: Iterable[Change] = ()) -> None:
        self.changes: list[Change] = list(changes)
        self._note = note

    @contextlib.contextmanager
    def trying(self, what: Any) -> Iterator[None]:
        """Note a change that the block makes; it is acknowledged if the block ends without an error.

        Args:
            what: a value from which the driver's `check` derives the expected content; not changed afterwards.
        """
        change = Change(what)
        self.changes.append(change)
        self._note(change)
        yield
        change.acknowledged = True
        self._note(change)

    @classmethod
    def of(cls, notes: Sequence[Change]) -> Journal:
        """Rebuild one journal from the notes of any number of journals: a second note acknowledges its change."""
        found: dict[int, Change] = {}
        for note in notes:
            if id(note) in found:
                found[id(note)].acknowledged = True
            else:
                found[id(note)] = Change(note.what)
        return cls(changes=found.values())


class Driver(Generic[StoreT]):
    """Opens, uses and checks stores of one kind: inherit it, and override `open`, `act` and `check` at least.

    Keep `act` small: it is called some ten thousand times.

    Attributes:
        has_peers: whether a store is shared: each opening of a world is a handle of the same store, any number may
            compact at once, and one commits. A store without peers has one owner, and a second opening is `Busy`.
        uses_executor: whether compactions give tasks to an executor.
    """

    has_peers: bool = False
    uses_executor: bool = True

    def open(self, world: World, settings: Any) -> StoreT:
        """Open the store of a world, empty the first time. It starts no thread.

        Args:
            world: its folder, files, clock and stores; the store makes every change through them.
            settings: an item of `settings()`.
        """
        raise NotImplementedError("override open, act and check")

    def settings(self) -> Sequence[Any]:
        """Return legal settings, each of which can open a store of any other; the first are the usual settings."""
        return [None]

    def act(self, store: StoreT, rng: Random, journal: Journal) -> None:
        """Make one call of a host: write, delete, compact or reclaim, each within `journal.trying`.

        An act reads its premises from the store, since an earlier act may have failed. It makes the same calls for
        equal states of the store and of `rng`. Concurrent acts are calls that a host's threads may make concurrently.
        """
        raise NotImplementedError("override open, act and check")

    def check(self, store: StoreT, journal: Journal, *, damage: str) -> None:
        """Read the whole content; raise `AssertionError` if an acknowledged change is missing or wrong.

        A change that was not acknowledged may be present or absent. Content that was never tried is wrong.

        Args:
            store: just opened; or a `reader`.
            journal: the changes that were tried.
            damage: the damage to one file of the closed store, or `""`: `"flipped"`, `"zeroed"`, `"cut"`,
                `"missing"`, `"older"`. With damage, an error of the library is right, too. A wrong value is wrong, and
                so is "never written" or "deleted" for a record that was acknowledged and not deleted. The exception is
                the end of an active file: after `"cut"`, the last writes may be absent, as if they had never been
                synced. `"put back"`: the whole folder is an older copy. If another store of the world has seen more,
                opening or reading raises a named error; otherwise the store is the older store.
        """
        raise NotImplementedError("override open, act and check")

    def policy(self) -> Any:
        """Return a policy whose plan is not empty after a few acts, for `store.compact(policy=...)`.

        `None` for a store without compaction.
        """
        return None

    def state(self, store: Any) -> object:
        """Return a value that changes only when a compaction commits."""
        return store.view().to_dicts()

    def contents(self, world: World, store: StoreT) -> Mapping[str, bytes]:
        """Return the whole stored content, as bytes by name."""
        return {"state": repr(self.state(store)).encode()} if self.has_peers else contents_of(world.folder)

    def reader(self, world: World) -> Any:
        """Open a reader of another process; `None` if the store has none.

        It has `close()`; for the hazard `readers` also `refresh()`.
        """
        return None

    def check_reader(self, reader: Any, journal: Journal) -> None:
        """Check what a reader reads, as `check` does."""
        self.check(reader, journal, damage="")

    def halves(self, what: Any) -> Iterable[tuple[Any, Any]]:
        """Return each way to take a change in two: another owner may act between them."""
        return ()


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder; folders and links have no bytes; the lock file is left out."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.name != LOCK_NAME:
            name = str(path.relative_to(folder))
            target = f" -> {os.readlink(path)}" if path.is_symlink() else ""
            found[name + target] = path.read_bytes() if path.is_file() and not target else b""
    return found
