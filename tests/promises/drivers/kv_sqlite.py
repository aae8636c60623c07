# SPDX-License-Identifier: Apache-2.0
"""The driver of a `SqliteStore`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import attrs

from compactlib.errors import CompactlibError, CorruptData
from compactlib.kv import EXISTS, KeyNotFound, KVStore, PredicateFailed, SqliteStore
from compactlib.testing import Driver, HostLock, Journal, StoreInFront, World
from tests.promises.drivers.possible import possible_states

PARTITIONS = (b"a", b"a\0", b"b")
KEYS = (b"k", b"k\0", b"k/1", b"\xff")
DAMAGED = "damaged"

Cell = tuple[bytes, bytes]
Cells = frozenset[tuple[Cell, bytes]]
"""The state of a store: each cell with its value."""


@attrs.frozen
class Wrote:
    """Cells set and deleted in one step."""

    cells: tuple[tuple[Cell, bytes | None], ...]
    opening: int

    def after(self, state: Cells) -> Cells:
        cells: dict[Cell, bytes | None] = {**dict(state), **dict(self.cells)}
        return frozenset((cell, value) for cell, value in cells.items() if value is not None)


@attrs.frozen
class Settings:
    """The settings of an opening."""

    synchronous: str = "normal"
    page_size: int = 1000


class SqliteInFront(StoreInFront):
    """A store in a file, each request of which is a step of its world; `opening` is a number."""

    opening: int
    host: HostLock
    audit: Callable[[], None]

    @classmethod
    def opened(cls, world: World, settings: Settings, name: str = "kv.sqlite") -> SqliteInFront:
        # After the first opening, a missing store is an error.
        path, made = world.folder / name, world.folder / f"{name}.made"
        sqlite = SqliteStore(path, synchronous=settings.synchronous, page_size=settings.page_size,  # type: ignore[arg-type]
                             create=not made.exists(), files=world.files, clock=world.clock)
        store = cls(sqlite, lambda request, act: world.step(request, act), page_size=settings.page_size)
        try:
            store._noted_as_made(world, made)
        except BaseException:
            sqlite.close()
            raise
        store.host, store.opening, store.audit = HostLock(), world.kept.get("openings", 0), sqlite.audit
        world.kept["openings"] = store.opening + 1
        return store

    def _noted_as_made(self, world: World, made: Path) -> None:
        if not made.exists():
            with contextlib.closing(world.files.create(made)):
                pass

    def close(self) -> None:
        super().close()
        self._store.close()


class SqliteDriver(Driver[SqliteInFront]):
    """A key-value store in one file of SQLite, whose disk requests are not recorded."""

    has_peers = True

    def settings(self) -> Sequence[Settings]:
        return [Settings(), Settings("full", 1), Settings("normal", 3)]

    def open(self, world: World, settings: Settings) -> SqliteInFront:
        return SqliteInFront.opened(world, settings)

    def act(self, store: SqliteInFront, rng: Random, journal: Journal) -> None:
        kind = rng.choice(["set", "transact", "delete", "set_if", "scan", "delete_if", "transact", "refused"])
        first, second = ((rng.choice(PARTITIONS), rng.choice(KEYS)) for _ in range(2))
        value = b"%08x" % rng.getrandbits(32) * rng.choice([0, 1, 3, 700])
        with store.host:
            found = states_of(store, [first, second])
            new = None if kind.startswith("delete") else value
            changes: dict[Cell, bytes | None] = {first: new}
            if kind == "transact":
                changes = {first: value, second: rng.choice([None, value + b"2"])}
            if kind in ("scan", "refused"):
                changes = {}
            with contextlib.suppress(PredicateFailed) if kind == "refused" else contextlib.nullcontext(), \
                    journal.trying(Wrote(tuple(changes.items()), store.opening)):
                if kind == "set":
                    store.set(*first, value)
                elif kind == "set_if":
                    store.set_if(*first, value, found[first])
                elif kind == "delete" or (kind == "delete_if" and found[first] is None):
                    store.delete(*first)
                elif kind == "delete_if":
                    store.delete_if(*first, rng.choice([EXISTS, found[first]]))
                elif kind == "transact":
                    store.transact({cell: found[cell] for cell in {first, second}}, changes)
                elif kind == "refused":
                    # A key without writers: another owner could make the condition of another key hold.
                    store.transact({(first[0], b"never"): EXISTS}, {second: b"refused"})
                    raise AssertionError("a condition that does not hold was passed")
                else:
                    list(store.scan(first[0], prefix=first[1][:1]))

    def check(self, store: SqliteInFront, journal: Journal, *, damage: str) -> None:
        nothing: Cells = frozenset()
        possible = possible_states(journal, nothing, after, after)
        found = dict(_read(store))
        scanned = dict(_scanned(store))
        if any(_agrees(state, found) and _agrees(state, scanned) for state in possible):
            if not damage:
                store.audit()
            return
        # A read may miss a row whose tree is damaged; the audit finds the damage.
        assert damage, f"found {found} and scanned {scanned}, possible is one of {possible}"
        with contextlib.suppress(CorruptData):
            store.audit()
            raise AssertionError(f"found {found} and scanned {scanned}, and the audit found nothing; possible is one "
                                 f"of {possible}")


def states_of(store: KVStore, cells: Iterable[Cell]) -> dict[Cell, object]:
    """Return the predicate of each cell, `None` if it is absent."""
    found: dict[Cell, object] = {}
    for cell in cells:
        try:
            found[cell] = store.get(*cell).predicate
        except KeyNotFound:
            found[cell] = None
    return found


def after(state: Cells, what: Wrote) -> Iterator[Cells]:
    yield what.after(state)


def _read(store: SqliteInFront) -> Iterator[tuple[Cell, bytes | str | None]]:
    """Yield each cell with its value; `None` if it is absent."""
    for cell in ((partition, key) for partition in PARTITIONS for key in KEYS):
        try:
            yield cell, store.get(*cell).value
        except KeyNotFound:
            yield cell, None
        except CompactlibError:
            yield cell, DAMAGED


def _scanned(store: SqliteInFront) -> Iterator[tuple[Cell, bytes | str | None]]:
    for partition in PARTITIONS:
        found: dict[bytes, bytes | str | None] = dict.fromkeys(KEYS)
        try:
            found.update((entry.key, entry.value) for entry in store.scan(partition))
        except CompactlibError:
            found = dict.fromkeys(KEYS, DAMAGED)
        yield from (((partition, key), value) for key, value in found.items())


def _agrees(state: Cells, found: dict[Cell, bytes | str | None]) -> bool:
    cells = dict(state)
    return all(value == DAMAGED or cells.get(cell) == value for cell, value in found.items())
