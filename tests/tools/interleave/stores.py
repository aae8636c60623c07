# SPDX-License-Identifier: Apache-2.0
"""Stores that take each operation as one step on a stage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from compactlib.errors import CompactlibError
from compactlib.kv.scan import PagedEntries
from compactlib.kv.store import (
    Address,
    Condition,
    Delete,
    KVEntry,
    KVLimits,
    KVStore,
    Predicate,
    Put,
    Versioned,
    checked_partition,
)
from compactlib.objects.in_front import ObjectsInFront
from compactlib.objects.store import ObjectInfo, ObjectRef, ObjectStore
from tests.tools.interleave.access import Access, Span, cell
from tests.tools.interleave.stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Buffer

ResultT = TypeVar("ResultT")

_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


class SteppedStore(KVStore):
    """A `KVStore` in front of another one; each operation, and each page of a scan, is one step of the actor.

    Args:
        store: carries the operations out.
        stage: whose actors use it. Off the stage (before and after a run) it adds nothing.
        page_size: entries of a page, at most.
        name: part of every span, to distinguish several stores of one world.
    """

    def __init__(self, store: KVStore, stage: Stage, *, page_size: int = 1000, name: str = "") -> None:
        self._store = store
        self._stage = stage
        self._page_size = page_size
        self._name = name.encode()

    @property
    def limits(self) -> KVLimits:
        return self._store.limits

    def place(self) -> str | None:
        return self._store.place()

    def get(self, partition: bytes, key: bytes) -> Versioned:
        access = Access("get", (self._cell(partition, key, writes=False),))
        return self._step(access, lambda: self._store.get(partition, key))

    def get_many(self, cells: Iterable[Address]) -> Sequence[Versioned | None]:
        checked = list(cells)
        access = Access("get_many", tuple(self._cell(*each, writes=False) for each in checked))
        return self._step(access, lambda: self._store.get_many(checked))

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        access = Access("set", (self._cell(partition, key),))
        self._step(access, lambda: self._store.set(partition, key, value), bytes(value))

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        access = Access("set_if", (self._cell(partition, key),))
        self._step(access, lambda: self._store.set_if(partition, key, value, predicate), bytes(value))

    def delete(self, partition: bytes, key: bytes) -> None:
        access = Access("delete", (self._cell(partition, key),))
        self._step(access, lambda: self._store.delete(partition, key))

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        access = Access("delete_if", (self._cell(partition, key),))
        self._step(access, lambda: self._store.delete_if(partition, key, predicate))

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> PagedEntries:
        partition = checked_partition(partition, self.limits)

        def read(position: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
            with self._store.scan(partition, position, page_size=limit, keys_only=keys_only) as entries:
                page = list(islice(entries, limit))
            return page, len(page) < limit

        def load(position: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
            # What the page will hold is not known yet, so it reads to the end.
            access = Access("scan", (Span(self._name + partition, position, _last(prefix), False),))
            return self._step(access, lambda: read(position, limit))

        return PagedEntries(load, start, prefix=prefix, after=after, page_size=page_size,
                            largest_page=self._page_size)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        held, written, removed = tuple(conditions), tuple(puts), tuple(deletes)
        changed: tuple[Put | Delete, ...] = (*written, *removed)
        access = Access("transact", (*(self._cell(each.partition, each.key) for each in changed),
                                     *(self._cell(each.partition, each.key, writes=False) for each in held)))
        self._step(access, lambda: self._store.transact(held, written, removed))

    def close(self) -> None:
        """The store behind stays open."""

    def audit(self) -> None:
        self._store.audit()

    def __repr__(self) -> str:
        return f"SteppedStore({self._store!r})"

    def _cell(self, partition: bytes, key: bytes, *, writes: bool = True) -> Span:
        return Span(self._name + partition, key, key, writes)

    def _step(self, access: Access, act: Callable[[], ResultT], value: bytes | None = None) -> ResultT:
        return take_step(self._stage, access, act, value)


class SteppedObjects(ObjectsInFront):
    """An `ObjectStore` in front of another one; each operation is one step of the actor, a listing as a whole.

    Args:
        store: carries the operations out.
        stage: whose actors use it.
        name: part of every span, to distinguish several stores of one world.
    """

    def __init__(self, store: ObjectStore, stage: Stage, *, name: str = "objects") -> None:
        super().__init__(store)
        self._stage = stage
        self._name = name

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        last = prefix + "\U0010ffff" if prefix else None
        access = Access("list", (Span(self._name, max(prefix, after), last, False),))
        return iter(take_step(self._stage, access, lambda: list(self._store.list(prefix, after=after))))

    def __repr__(self) -> str:
        return f"SteppedObjects({self._store!r})"

    def _request(self, name: str, key: str, act: Callable[[], ResultT]) -> ResultT:
        return take_step(self._stage, Access(name, (cell(self._name, key, writes=name in ("create", "delete")),)), act)


def take_step(stage: Stage, access: Access, act: Callable[[], ResultT], value: object = None) -> ResultT:
    """Wait for the actor's turn, act, and note what came of it if the run is recorded as a story; for your own stores.

    Args:
        stage: the stage.
        access: what `act` will touch, at least.
        act: the operation itself; it must take no further step.
        value: what it writes, for the story.
    """
    stage.step(access)
    if not stage.telling:
        return act()
    written = "" if value is None else f"{_shown(value)} "
    try:
        result = act()
    except CompactlibError as error:
        stage.note(f"{written}→ {type(error).__name__}")
        raise
    stage.note(written if result is None else f"{written}→ {_shown(result)}")
    return result


def _last(prefix: bytes) -> bytes | None:
    """A key that no key with the prefix lies above; `None` if there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _shown(value: object) -> str:
    match value:
        case Versioned(value=held):
            return _shown(held)
        case (list() as page, bool() as last):
            keys = (entry.key.decode("ascii", "backslashreplace") for entry in page if isinstance(entry, KVEntry))
            return f"[{', '.join(keys)}]" + ("" if last else " …")
        case bytes():
            text = _UNPRINTABLE.sub("·", value.decode("ascii", "replace"))
        case ObjectRef() | ObjectInfo():
            text = f"{value.size_bytes} bytes"
        case _:
            text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
