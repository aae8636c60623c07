# SPDX-License-Identifier: Apache-2.0
"""Deleting what a cut of the update log left behind: always after the commit, and restartable at any step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from compactlib.catalog.errors import RecordMissing
from compactlib.catalog.log import keys
from compactlib.catalog.log.records import RecordType, fields_of, unseal
from compactlib.catalog.log.update_log import MAX_ATTEMPTS, UpdateLog
from compactlib.kv import Delete
from compactlib.runtime.budget import Budget

_RECLAIM_BATCH = 500


@attrs.frozen
class CatalogReclaim:
    """What a reclaim deleted.

    Attributes:
        keys: how many keys.
        bytes_freed: of keys and records.
    """

    keys: int
    bytes_freed: int


def reclaim(log: UpdateLog, budget: Budget | None = None) -> CatalogReclaim:
    """Delete what no snapshot and no version needs any more. Restartable at any step.

    Those are updates below the earliest version, and pieces of snapshots below it or of attempts that lost. The
    earliest version only rises and no key below it is ever written again, so a caller that was held up, while others
    cut the log further, deletes nothing that is needed.

    Raises:
        RecordMissing, RecordDamaged, RecordTooNew: the snapshot with which the log begins cannot be read.
        BudgetSpent: the budget ended; what was deleted until then is gone.
    """
    asked = Budget() if budget is None else budget
    steps = list(reclaimed(log, asked))
    return CatalogReclaim(sum(step.keys for step in steps), sum(step.bytes_freed for step in steps))


def reclaimed(log: UpdateLog, budget: Budget) -> Iterator[CatalogReclaim]:
    """The same, a step at a time; each is given once it is done. Raises as `reclaim`."""
    doomed = list(garbage(log, budget).items())
    batch = min(_RECLAIM_BATCH, log.store.limits.max_transact)
    for at in range(0, len(doomed), batch):
        budget.check()
        gone = doomed[at:at + batch]
        log.store.transact(deletes=[Delete(log.partition, key) for key, _ in gone])
        yield CatalogReclaim(len(gone), sum(size for _, size in gone))


def garbage(log: UpdateLog, budget: Budget) -> Mapping[bytes, int]:
    """The keys that `reclaim` would delete now, each with the bytes that it and its record take.

    Raises:
        RecordMissing, RecordDamaged, RecordTooNew, BudgetSpent: as `reclaim`.
    """
    for _ in range(MAX_ATTEMPTS):
        state = log.state()
        if state is None or not state.compacted:
            return {}
        try:
            return dict(_garbage(log, state.earliest, budget))
        except RecordMissing:
            again = log.state()
            if again is None or again.earliest == state.earliest:
                raise
    return {}  # others cut the log again and again, and each of them reclaims


def _garbage(log: UpdateLog, earliest: int, budget: Budget) -> Iterator[tuple[bytes, int]]:
    for version, key, record in log.records.from_version(0, few=True):
        budget.check()
        if version >= earliest:
            break
        yield key, len(key) + len(record)
    used = _pieces_of(log, earliest)
    with log.store.scan(log.partition, prefix=keys.CHUNKS) as entries:
        for entry in entries:
            budget.check()
            version_found = keys.chunk_version(entry.key)
            # Above the earliest version another node may be writing a snapshot right now.
            if version_found is not None and version_found <= earliest and entry.key not in used:
                yield entry.key, len(entry.key) + len(entry.value)


def _pieces_of(log: UpdateLog, version: int) -> frozenset[bytes]:
    key = keys.update_key(version)
    found = log.records.get(key)
    if found is None:
        raise RecordMissing(key=key.decode(), version=version, expected="the snapshot with which the log begins")
    kind, payload = unseal(key, found[0], RecordType.UPDATE, RecordType.SNAPSHOT, RecordType.CHUNKED_SNAPSHOT)
    if kind is not RecordType.CHUNKED_SNAPSHOT:
        return frozenset()
    version, writer, count = fields_of(key, payload, "version", "writer", "chunks", "bytes", "crc")[:3]
    return frozenset(keys.chunk_key(version, writer, number) for number in range(count))
