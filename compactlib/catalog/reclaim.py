"""Deleting what a cut of the update log left behind: always after the commit, and restartable at any step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from compactlib.catalog import keys
from compactlib.catalog.errors import RecordMissing
from compactlib.catalog.records import RecordType, fields_of, unseal
from compactlib.catalog.update_log import MAX_ATTEMPTS, UpdateLog
from compactlib.kv import Delete

_RECLAIM_BATCH = 500


def reclaim(log: UpdateLog) -> int:
    """Delete what no snapshot and no version needs any more; returns how many keys. Restartable at any step.

    Those are updates below the earliest version, and pieces of snapshots below it or of attempts that lost. The
    earliest version only rises and no key below it is ever written again, so a caller that was held up, while others
    cut the log further, deletes nothing that anybody needs.

    Raises:
        RecordMissing, RecordDamaged, RecordTooNew: the snapshot with which the log begins cannot be read.
    """
    for _ in range(MAX_ATTEMPTS):
        state = log.state()
        if state is None or not state.compacted:
            return 0
        try:
            garbage = iter([*_garbage(log, state.earliest)])
            break
        except RecordMissing:
            again = log.state()
            if again is None or again.earliest == state.earliest:
                raise
    else:
        return 0  # others cut the log again and again, and each of them reclaims
    batch = min(_RECLAIM_BATCH, log.store.limits.max_transact)
    deleted = 0
    while doomed := list(islice(garbage, batch)):
        log.store.transact(deletes=[Delete(log.partition, key) for key in doomed])
        deleted += len(doomed)
    return deleted


def _garbage(log: UpdateLog, earliest: int) -> Iterator[bytes]:
    for version, key, _ in log._updates_from(0):
        if version >= earliest:
            break
        yield key
    used = _pieces_of(log, earliest)
    with log.store.scan(log.partition, prefix=keys.CHUNKS) as entries:
        for entry in entries:
            version_found = keys.chunk_version(entry.key)
            # Above the earliest version somebody may be writing a snapshot right now.
            if version_found is not None and version_found <= earliest and entry.key not in used:
                yield entry.key


def _pieces_of(log: UpdateLog, version: int) -> frozenset[bytes]:
    key = keys.update_key(version)
    found = log._get(key)
    if found is None:
        raise RecordMissing(key=key.decode(), version=version, expected="the snapshot with which the log begins")
    kind, payload = unseal(key, found[0], RecordType.UPDATE, RecordType.SNAPSHOT, RecordType.CHUNKED_SNAPSHOT)
    if kind is not RecordType.CHUNKED_SNAPSHOT:
        return frozenset()
    version, writer, count = fields_of(key, payload, "version", "writer", "chunks", "bytes", "crc")[:3]
    return frozenset(keys.chunk_key(version, writer, number) for number in range(count))
