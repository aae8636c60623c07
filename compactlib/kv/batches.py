# SPDX-License-Identifier: Apache-2.0
"""Batches over any `KVStore`: a batch above the store's limits becomes several requests.

>>> from compactlib.kv import MemoryStore
>>> store = MemoryStore()
>>> change_many(store, b"accounts", {b"ann": b"10", b"bob": b"5", b"carl": None})
>>> [found.value for found in get_many(store, [(b"accounts", b"ann"), (b"accounts", b"carl")]).values()]
[b'10']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from compactlib.errors import CompactlibError
from compactlib.kv.errors import OutcomeUnknown, TooLarge
from compactlib.kv.store import Address, Delete, KVStore, Put, Versioned

_PIECES = 15
"""Pieces of 256 KiB in a request, together below the 4 MiB of a transaction of DynamoDB."""


def get_many(store: KVStore, cells: Iterable[Address]) -> dict[Address, Versioned]:
    """Return the values of cells, without the absent ones.

    One request for each `limits.max_get_many` cells. Different cells are read at different moments of the call.

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


def change_many(store: KVStore, partition: bytes, changes: Mapping[bytes, bytes | None]) -> None:
    """Put and delete keys of a partition, unconditionally. Idempotent.

    One `transact` for each `limits.max_transact` keys, or for fewer if they are too large. Only each request is atomic.

    Args:
        store: of the keys.
        partition: the partition.
        changes: the new value of each key; `None` deletes it.

    Raises:
        InvalidInput: an argument is wrong; nothing was written.
        OutcomeUnknown: a later request failed; repeat the whole batch.
        CompactlibError: of the store, for the first request.
    """
    parts = [Delete(partition, key) if value is None else Put(partition, key, value) for key, value in changes.items()]
    most = store.limits.max_transact
    if len(parts) > most:
        store.checked((), *_sorted_out(parts))  # raises before the first request what a later one would
    at, size = 0, most
    while at < len(parts):
        part = parts[at:at + size]
        try:
            _change(store, part)
        except CompactlibError as error:
            if isinstance(error, TooLarge) and error.what == "transaction" and len(part) > 1:
                size = len(part) // 2
                continue
            if at == 0:
                raise
            raise OutcomeUnknown(operation="write", path="a batch",
                                 detail=f"{at} of {len(parts)} keys were written, then: {error}") from error
        at, size = at + len(part), most


def get_pieces(store: KVStore, partition: bytes, keys: Sequence[bytes]) -> Iterator[bytes | None]:
    """Yield the values of pieces, in order; `None` for an absent piece. 15 pieces a request.

    Raises:
        CompactlibError: as `get_many`.
    """
    for at in range(0, len(keys), _PIECES):
        cells = [(partition, key) for key in keys[at:at + _PIECES]]
        found = get_many(store, cells)
        yield from (found[cell].value if cell in found else None for cell in cells)


def put_pieces(store: KVStore, partition: bytes, pieces: Iterable[tuple[bytes, bytes]]) -> None:
    """Put pieces, to which nothing refers yet. 15 pieces a request.

    Raises:
        CompactlibError: of the store; some pieces may be written.
    """
    waiting = iter(pieces)
    while part := dict(islice(waiting, _PIECES)):
        change_many(store, partition, part)


def _change(store: KVStore, parts: Sequence[Put | Delete]) -> None:
    if len(parts) > 1:
        store.transact((), *_sorted_out(parts))
        return
    part, = parts
    if isinstance(part, Put):
        store.set(part.partition, part.key, part.value)
    else:
        store.delete(part.partition, part.key)


def _sorted_out(parts: Sequence[Put | Delete]) -> tuple[list[Put], list[Delete]]:
    return [each for each in parts if isinstance(each, Put)], [each for each in parts if isinstance(each, Delete)]
