# SPDX-License-Identifier: Apache-2.0
"""Batches over any `KVStore`: a batch above the store's limits becomes several requests.

>>> from compactlib.kv import MemoryStore
>>> store = MemoryStore()
>>> change_many(store, b"accounts", {b"ann": b"10", b"bob": b"5", b"carl": None})
>>> [entry.value for entry in store.scan(b"accounts")]
[b'10', b'5']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from compactlib.errors import CompactlibError, CorruptData
from compactlib.kv.errors import OutcomeUnknown
from compactlib.kv.scan import KVEntry
from compactlib.kv.store import Address, Changes, KVLimits, KVStore, part_bytes

_PIECES = 15
"""Pieces of 256 KiB in a request, together below the 4 MiB of a transaction of DynamoDB."""


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
    written = 0
    # All are checked first: an error of a later request must come before the first.
    for batch in _batches(store.checked({(partition, key): value for key, value in changes.items()}), store.limits):
        try:
            store.transact(changes=batch)
        except CompactlibError as error:
            if not written:
                raise
            raise OutcomeUnknown(operation="write", path="a batch", detail=f"{written} of {len(changes)} keys were "
                                 f"written, then: {error}") from error
        written += len(batch)


def _batches(changes: Changes, limits: KVLimits) -> Iterator[Changes]:
    batch: dict[Address, bytes | None] = {}
    left = most_bytes = math.inf if limits.max_transact_bytes is None else limits.max_transact_bytes
    for address, value in changes.items():
        size = part_bytes(address, value)
        if batch and (len(batch) == limits.max_transact or size > left):
            yield batch
            batch, left = {}, most_bytes
        batch[address] = value
        left -= size
    if batch:
        yield batch


def sound_entries(store: KVStore, partition: bytes, damage: dict[bytes, CompactlibError] | None, *, start: bytes = b"",
                  prefix: bytes = b"", page_size: int | None = None) -> Iterator[KVEntry]:
    """Yield the entries of a scan that can be read, and put the errors of the others into `damage`, by key.

    For clean-ups, which go on past a damaged entry. After a damaged page, it costs a read for each entry. Without
    `damage`, it raises at the damaged page.
    """
    try:
        with store.scan(partition, start, prefix=prefix, page_size=page_size) as entries:
            for entry in entries:
                start = entry.key + b"\0"
                yield entry
        return
    except CorruptData:
        if damage is None:
            raise
    with store.scan(partition, start, prefix=prefix, keys_only=True) as keys:
        for key in keys:
            try:
                found = store.get_many([(partition, key.key)])
            except CorruptData as error:
                damage[key.key] = error
            else:
                yield from found.values()


def get_pieces(store: KVStore, partition: bytes, keys: Sequence[bytes]) -> Iterator[bytes | None]:
    """Yield the values of pieces, in order; `None` for an absent piece. 15 pieces a request.

    Raises:
        CompactlibError: as `KVStore.get_many`.
    """
    for at in range(0, len(keys), _PIECES):
        cells = [(partition, key) for key in keys[at:at + _PIECES]]
        found = store.get_many(cells)
        yield from (found[cell].value if cell in found else None for cell in cells)


def put_pieces(store: KVStore, partition: bytes, pieces: Iterable[tuple[bytes, bytes]]) -> None:
    """Put pieces, to which nothing refers yet. 15 pieces a request.

    Raises:
        CompactlibError: of the store; some pieces may be written.
    """
    waiting = iter(pieces)
    while part := dict(islice(waiting, _PIECES)):
        change_many(store, partition, part)
