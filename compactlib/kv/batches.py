# SPDX-License-Identifier: Apache-2.0
"""Batches over any `KVStore`: a batch above the store's limits becomes several requests.

>>> from compactlib.kv import MemoryStore
>>> store = MemoryStore()
>>> change_many(store, b"accounts", {b"ann": b"10", b"bob": b"5", b"carl": None})
>>> [found.value for found in get_many(store, [(b"accounts", b"ann"), (b"accounts", b"carl")]).values()]
[b'10']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from compactlib.errors import CompactlibError
from compactlib.kv.errors import OutcomeUnknown
from compactlib.kv.store import Address, Delete, KVLimits, KVStore, Put, Versioned, part_bytes

_PIECES = 15
"""Pieces of 256 KiB in a request, together below the 4 MiB of a transaction of DynamoDB."""


def get_many(store: KVStore, cells: Iterable[Address]) -> dict[Address, Versioned]:
    """Return the values of the cells that exist.

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

    As few requests as the store's limits allow; only each request is atomic.

    Args:
        store: the keys' store.
        partition: the partition.
        changes: the new value of each key; `None` deletes it.

    Raises:
        InvalidInput: an argument is wrong; nothing was written.
        OutcomeUnknown: a later request failed; repeat the whole batch.
        CompactlibError: of the store, for the first request.
    """
    parts = [Delete(partition, key) if value is None else Put(partition, key, value) for key, value in changes.items()]
    batches = list(_batches(parts, store.limits))
    if len(batches) > 1:
        store.checked((), *_sorted_out(parts))  # raises the error of a later request before the first
    written = 0
    for batch in batches:
        try:
            store.transact((), *_sorted_out(batch))
        except CompactlibError as error:
            if not written:
                raise
            raise OutcomeUnknown(operation="write", path="a batch", detail=f"{written} of {len(parts)} keys were "
                                 f"written, then: {error}") from error
        written += len(batch)


def _batches(parts: Iterable[Put | Delete], limits: KVLimits) -> Iterator[list[Put | Delete]]:
    batch: list[Put | Delete] = []
    left = most_bytes = math.inf if limits.max_transact_bytes is None else limits.max_transact_bytes
    for part in parts:
        size = part_bytes(part.partition, part.key, part.value if isinstance(part, Put) else None)
        if batch and (len(batch) == limits.max_transact or size > left):
            yield batch
            batch, left = [], most_bytes
        batch.append(part)
        left -= size
    if batch:
        yield batch


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


def _sorted_out(parts: Sequence[Put | Delete]) -> tuple[list[Put], list[Delete]]:
    return [each for each in parts if isinstance(each, Put)], [each for each in parts if isinstance(each, Delete)]
