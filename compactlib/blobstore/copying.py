# SPDX-License-Identifier: Apache-2.0
"""`copy_store`: a store's records in another store, of another capacity or other segments."""

from __future__ import annotations

import contextlib
import os

import attrs

from compactlib.blobstore.blobs import Blob, GetOptions, blob_state
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents, records_after
from compactlib.blobstore.index import ENDS_OR_REVIVES
from compactlib.blobstore.reader import BlobReader
from compactlib.blobstore.reading import Reading
from compactlib.blobstore.records import IndexEntry, RecordKind
from compactlib.blobstore.store import BlobStore
from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import InvalidInput, StorageError
from compactlib.files.disk import Files, LocalFiles, StrPath, list_folder, local_path

_UNFINISHED = ".copying"
_EVERYTHING = GetOptions(include_deleted=True, include_expired=True)


@attrs.frozen
class StoreCopy:
    """The result of `copy_store`."""

    records: int
    """The number of records in the copy."""
    bytes_copied: int
    """The sum of their sizes."""
    left_out: int
    """PUTs that were not copied, because their content was dropped."""


def copy_store(source: BlobStore | BlobReader, folder: StrPath, config: BlobStoreConfig, *,
               files: Files | None = None, clock: Clock | None = None, budget: Budget | None = None) -> StoreCopy:
    """Copy a store into a new one, with the capacity and the segments of `config`.

    Every record keeps its times, its life, its expiry, its account and container, and the order of the records; each
    content is checked. The copy has its own places, sequences and incarnation: peers start at its first record. Deleted
    and expired blobs are copied, too; compactions of the copy drop them.

    The copy is renamed to `folder` once it is complete and durable. Until then, and after a crash, its folder has the
    suffix `.copying`. Records that are written to the source during the copy are not included, except a PUT that
    replaces another one.

    Args:
        source: the open store, or a reader of it.
        folder: the folder of the copy, which does not exist.
        config: the settings of the copy.
        files: the disk of the copy.
        clock: the clock of the copy.
        budget: spends the bytes of each record.

    Raises:
        InvalidInput: the folder or an unfinished copy exists; or the capacity is no multiple of the segments'.
        CorruptData: a record of the source is damaged.
        StoreFull, BlobTooLarge: the copy, or its segments, have too little capacity.
        BudgetSpent, StorageError: the budget ended, or the disk refused. After each of these errors the copy is
            removed, unless the disk refuses that, or the sync of the complete copy's new name.
    """
    disk: Files = LocalFiles() if files is None else files
    path = local_path(folder)
    unfinished = path + _UNFINISHED
    for name in (path, unfinished):
        if os.path.lexists(name):
            raise InvalidInput(f"{name} exists; a store is copied into a new folder: remove this one, or give "
                               f"another folder")
    config.check_capacity()
    # Outside of the `try`: a folder that another copy makes concurrently must not be removed.
    disk.make_folder(unfinished)
    try:
        # Without eviction, which would drop records of the copy.
        quiet = attrs.evolve(config, durability="interval", evicts=False)
        with BlobStore(unfinished, quiet, files=disk, clock=clock) as copy:
            done = _copied(source, copy, Budget() if budget is None else budget)
            copy.flush()
        disk.rename(unfinished, path)
    except BaseException:
        with contextlib.suppress(StorageError, OSError):
            for name in list_folder(unfinished):
                disk.unlink(os.path.join(unfinished, name))
            disk.remove_folder(unfinished)
        raise
    disk.sync_folder(os.path.dirname(path))
    return done


def _copied(source: Reading, copy: BlobStore, budget: Budget) -> StoreCopy:
    records = size = left_out = 0
    # Of one moment: a PUT that arrives later must not hide the DELETE of a PUT that was copied before.
    contents = source._contents().frozen()
    for entry in records_after(contents, 0):
        put = _put_in(contents, entry.id)
        content = b""
        if entry.kind == RecordKind.PUT:
            found = None
            if put is not None and put.sequence == entry.sequence:
                entry, found = _newest(source, entry)
            if not isinstance(found, Blob) or round(found.info.put_at * 1000) != entry.op_time_ms:
                left_out += 1
                continue
            content = found.content
        elif entry.kind in ENDS_OR_REVIVES and put is not None and entry.sequence < put.sequence:
            # Superseded by a later PUT: its flag of a TTL update would make that PUT permanent.
            continue
        budget.spend(entry.size)
        copy.append_replicated(
            RecordKind(entry.kind), entry.id, content, op_time=entry.op_time_ms / 1000, life_version=entry.life_version,
            expires_at=None if entry.expires_ms < 0 else entry.expires_ms / 1000, permanent=entry.is_permanent,
            account=entry.account, container=entry.container)
        records += 1
        size += entry.size
    return StoreCopy(records, size, left_out)


def _newest(source: Reading, put: IndexEntry) -> tuple[IndexEntry, object]:
    """Read the blob of a PUT; return the answer, and the PUT that has replaced this one meanwhile, if there is one."""
    while True:
        found = source.get(put.id, _EVERYTHING)
        newest = _put_in(source._contents(), put.id)
        if newest is None or newest == put:
            return put, found
        put = newest


def _put_in(contents: LogContents, blob_id: bytes) -> IndexEntry | None:
    state = blob_state(contents.find(blob_id))
    return None if state is None else state.put
