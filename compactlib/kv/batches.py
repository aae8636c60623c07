# SPDX-License-Identifier: Apache-2.0
"""Many keys in few requests, over any `KVStore`: `get_many` and `change_many`, and pieces of what is too large for one.

What a store takes in one request its `limits` say. A batch that is larger becomes several requests, one after the
other.

>>> from compactlib.kv import MemoryStore
>>> store = MemoryStore()
>>> change_many(store, b"accounts", {b"ann": b"10", b"bob": b"5", b"carl": None})
>>> [found.value for found in get_many(store, [(b"accounts", b"ann"), (b"accounts", b"carl")]).values()]
[b'10']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, cast

from compactlib.errors import CompactlibError
from compactlib.kv.errors import OutcomeUnknown, TooLarge
from compactlib.kv.store import (
    Address,
    Delete,
    KVStore,
    Put,
    Versioned,
    checked_cell,
    checked_partition,
    checked_put,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PIECES = 16
"""Pieces of larger things in one request: of 256 KiB each, 4 MiB together."""


def get_many(store: KVStore, cells: Iterable[Address]) -> dict[Address, Versioned]:
    """What a store holds of these cells; those that are not there are left out.

    One request for each `limits.max_get_many` cells. Each cell is read at some moment of the call, not all at the same
    one.

    Raises:
        CompactlibError: as `KVStore.get_many`.
    """
    wanted = list(dict.fromkeys(cells))
    most = store.limits.max_get_many
    found: dict[Address, Versioned] = {}
    for at in range(0, len(wanted), most):
        part = wanted[at:at + most]
        answers = store.get_many(part)
        found.update((cell, answer) for cell, answer in zip(part, answers, strict=True) if answer is not None)
    return found


def change_many(store: KVStore, partition: bytes, changes: Mapping[bytes, Buffer | None]) -> None:
    """Put and delete keys of one partition, whatever was there.

    One `transact` for each `limits.max_transact` keys, fewer where they are too large together. Each request is one
    step, all of them are not. The same call may be made again. (DynamoDB charges twice for what is written in a
    `transact`, so one key alone is not.)

    Args:
        store: where.
        partition: the partition.
        changes: the new value of each key; `None` deletes it.

    Raises:
        InvalidInput: an argument is wrong; nothing was written.
        OutcomeUnknown: it ended after the first of several requests; make the whole batch again.
        CompactlibError: what the store raises for the first request.
    """
    waiting = list(changes.items())
    most = store.limits.max_transact
    if len(waiting) > most:
        _check(store, partition, waiting)
    at, size = 0, most
    while at < len(waiting):
        part = waiting[at:at + size]
        try:
            _change(store, partition, part)
        except CompactlibError as error:
            if isinstance(error, TooLarge) and error.what == "transaction" and len(part) > 1:
                size = len(part) // 2
                continue
            if at == 0:
                raise
            raise OutcomeUnknown(operation="write", path="a batch",
                                 detail=f"{at} of {len(waiting)} keys were written, then: {error}") from error
        at, size = at + len(part), most


def get_pieces(store: KVStore, partition: bytes, keys: Sequence[bytes]) -> Iterator[bytes | None]:
    """The values of the pieces of something larger, in order; `None` for one that is not there.

    16 of them in one request.

    Raises:
        CompactlibError: as `get_many`.
    """
    for at in range(0, len(keys), _PIECES):
        cells = [(partition, key) for key in keys[at:at + _PIECES]]
        found = get_many(store, cells)
        yield from (found[cell].value if cell in found else None for cell in cells)


def put_pieces(store: KVStore, partition: bytes, pieces: Iterable[tuple[bytes, bytes]]) -> None:
    """Put the pieces of something larger, which nothing names yet; 16 of them in one request.

    Raises:
        CompactlibError: what the store raises; some pieces may be written.
    """
    waiting = iter(pieces)
    while part := dict(islice(waiting, _PIECES)):
        try:
            change_many(store, partition, part)
        except OutcomeUnknown as error:
            # Whoever puts pieces asks what the store said, not how many there are: nothing names them.
            cause = error.__cause__
            raise (cause if isinstance(cause, CompactlibError) else error) from None


def _change(store: KVStore, partition: bytes, changes: Sequence[tuple[bytes, Buffer | None]]) -> None:
    """Carry out changes in one request."""
    if len(changes) > 1:
        store.transact((), [Put(partition, key, cast("bytes", value)) for key, value in changes if value is not None],
                       [Delete(partition, key) for key, value in changes if value is None])
        return
    (key, value), = changes
    if value is None:
        store.delete(partition, key)
    else:
        store.set(partition, key, value)


def _check(store: KVStore, partition: bytes, changes: Sequence[tuple[bytes, Buffer | None]]) -> None:
    """Refuse what the last request would refuse before the first one is sent."""
    checked_partition(partition, store.limits)
    for key, value in changes:
        if value is None:
            checked_cell(partition, key, store.limits)
        else:
            checked_put(partition, key, value, store.limits)
