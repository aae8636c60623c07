# SPDX-License-Identifier: Apache-2.0
"""Putting a received snapshot in force: the one place where a transfer touches the follower's log."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import takewhile

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

    Nothing that is added follows an entry that may be another leader's: there is a gap between them, which shows after
    a crash, even where no index is missing, unless the term says whose it is.

    Raises:
        LiveIndexMissing: the log lacks a live entry that was not sent since it had applied it; nothing was changed.
        CorruptData: the state is not what the manifest says.
        StorageError: the disk refused. If `meta` is in force in `snapshots` by then, it stays so, and nothing else may
            be done to the log before this was called again, and has returned.
        LogStopped, Closed: the log refused.
    """
    sent = IndexSet.from_sorted(entry.index for _, entries in _chunks(incoming) for entry in entries)
    log.pin(live.difference(sent)).release()
    kept = log.last_index
    try:
        is_behind = False
        for previous, entries in _chunks(incoming):
            held = 0 if is_behind else sum(1 for _ in takewhile(partial(_holds, log), entries))
            missing, is_apart = entries[held:], False
            if missing and not is_behind:
                is_behind, first = True, missing[0]
                previous = entries[held - 1].index if held else previous
                kept = min(kept, first.index - 1)
                before = log.read(kept) if previous < kept == first.index - 1 else None
                is_apart = isinstance(before, Entry) and before.term != first.term
                log.reset(kept)
            log.append_sparse(missing, apart=is_apart)
        log.sync()
        with log.pin(live):
            # Before the store says that it is in force, every entry that it needs is here, durably.
            snapshots.adopt(incoming, live)
            if log.state.index < meta.index:
                log.install(SnapshotMeta(meta.index, meta.term, live))
    except CompactlibError:
        if snapshots.manifest != meta and log.last_index > kept:
            log.reset(kept)
            log.sync()
        raise


def _holds(log: ReplicatedLog, entry: Entry) -> bool:
    found = log.read(entry.index)
    return isinstance(found, Entry) and found.term == entry.term


def _chunks(incoming: IncomingState) -> Iterator[tuple[int, list[Entry]]]:
    """The entries that were sent, in pieces, each with the index that the sender went on from."""
    for piece in incoming.entry_pieces():
        chunk = decode(piece[LENGTH_BYTES:], source=incoming.path)
        assert isinstance(chunk, EntryChunk), chunk
        yield chunk.previous, [entry.entry for entry in chunk.entries]
