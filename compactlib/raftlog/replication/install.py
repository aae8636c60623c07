# SPDX-License-Identifier: Apache-2.0
"""Putting a received snapshot in force: the one place where a transfer touches the follower's log."""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.errors import CompactlibError
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import Entry
from compactlib.raftlog.replication.messages import EntryChunk, Envelope, SentEntry
from compactlib.raftlog.replication.wire import LENGTH_BYTES, decode, encode
from compactlib.raftlog.snapshots.folder import SnapshotFolder
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.staging import IncomingState
from compactlib.raftlog.store.protocols import ReplicatedLog

_ASIDE = Envelope(0, 0, 0)


def put_aside(incoming: IncomingState, previous: int, entries: tuple[Entry, ...]) -> None:
    """Keep live entries that have arrived until all of the snapshot is here.

    Args:
        incoming: the snapshot that is received.
        previous: the index before the first.
        entries: ascending.

    Raises:
        StorageError: the disk refused.
    """
    incoming.write_entries(encode(EntryChunk(_ASIDE, previous, tuple(map(SentEntry.of, entries)))))


def put_in_force(log: ReplicatedLog, snapshots: SnapshotFolder, incoming: IncomingState, meta: SnapshotManifest,
                 live: IndexSet) -> None:
    """Give the log the live entries that it lacks, and make the snapshot the one in force, durably.

    As in Raft, an entry that the log holds with the same index and term is the leader's, as is everything below it, and
    stays; so does whatever lies above the snapshot, if the log holds the snapshot's last entry. Only what contradicts
    the snapshot is taken back. If it cannot be put in force, the log loses what was added, and keeps the rest.

    Raises:
        LiveIndexMissing: the log lacks a live entry that was not sent since it had applied it; nothing was changed.
        CorruptData: the state is not what the manifest says.
        StorageError, LogStopped, Closed: the disk or the log refused.
    """
    sent = IndexSet.from_sorted(entry.index for chunk in _chunks(incoming) for entry in chunk)
    log.pin(live.difference(sent)).release()
    kept = log.last_index
    try:
        matches = True
        for chunk in _chunks(incoming):
            missing = []
            for entry in chunk:
                found = log.read(entry.index) if matches else None
                matches = isinstance(found, Entry) and found.term == entry.term
                if not matches:
                    missing.append(entry)
            if missing and missing[0].index <= log.last_index:
                kept = missing[0].index - 1
                log.reset(kept)
            log.append_sparse(missing)
        log.sync()
        with log.pin(live):
            # Before the store says that it is in force, every entry that it needs is here, durably.
            snapshots.adopt(incoming, live)
            log.install(SnapshotMeta(meta.index, meta.term, live))
    except CompactlibError:
        if snapshots.manifest != meta and log.last_index > kept:
            log.reset(kept)
            log.sync()
        raise


def _chunks(incoming: IncomingState) -> Iterator[tuple[Entry, ...]]:
    for piece in incoming.entry_pieces():
        chunk = decode(piece[LENGTH_BYTES:], source=incoming.path)
        assert isinstance(chunk, EntryChunk), chunk
        yield tuple(entry.entry for entry in chunk.entries)
