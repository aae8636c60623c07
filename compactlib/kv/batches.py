# SPDX-License-Identifier: Apache-2.0
"""Batches of any size over any `KVStore`: a batch above the store's limits becomes several requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compactlib.errors import CompactlibError
from compactlib.kv.errors import OutcomeUnknown
from compactlib.kv.scan import KVEntry
from compactlib.kv.store import Address, Changes, KVLimits, KVStore, part_bytes

_MOST_BYTES = 4 << 20
"""The most bytes of a request, so that other writers wait only a moment for it."""


def change_many(store: KVStore, partition: bytes, changes: Mapping[bytes, bytes | None]) -> None:
    """Put and delete keys of a partition, unconditionally. Idempotent.

    A request has as many changes as the store's limits and 4 MiB allow. Each request is atomic, the batch is not.

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
    # Every change is checked before the first request, so that an invalid one changes nothing.
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
    left = most_bytes = min(_MOST_BYTES, limits.max_transact_bytes or _MOST_BYTES)
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

    For clean-ups, which go on past a damaged entry. Without `damage`, it raises the error.
    """
    with store.scan(partition, start, prefix=prefix, page_size=page_size, keys_only=damage is not None) as entries:
        for entry in entries:
            if entry.damage is None:
                yield entry
            elif damage is not None:
                damage[entry.key] = entry.damage
