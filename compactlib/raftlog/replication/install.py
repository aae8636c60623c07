# SPDX-License-Identifier: Apache-2.0
"""Putting a received snapshot in force: the one place where a transfer touches the follower's log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import takewhile

from compactlib.errors import Closed, CompactlibError
from compactlib.indexset import IndexSet
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import Entry
from compactlib.raftlog.replication.messages import Entries, decode, encode
from compactlib.raftlog.snapshots.folder import SnapshotFolder
from compactlib.raftlog.snapshots.staging import IncomingState
from compactlib.raftlog.store.raft_log import RaftLog


def put_aside(incoming: IncomingState, entries: Entries) -> None:
    """Keep live entries that have arrived until all of the snapshot is here.

    Raises:
        StorageError: the disk refused.
    """
    incoming.write_entries(encode(entries))


def put_in_force(log: RaftLog, snapshots: SnapshotFolder, incoming: IncomingState, live: IndexSet) -> None:
    """Give the log the live entries that it lacks, and make the snapshot the one in force, durably.

    As in Raft, an entry that the log holds with the same index and term is the leader's, as is everything below it, and
    stays; so does whatever lies above the snapshot, if the log holds the snapshot's last entry. Only what contradicts
    the snapshot is taken back.

    Until the snapshot is in force in its folder, a failure takes back what was added. After that the log closes itself,
    and opening it again does the rest.

    Nothing that is added follows an entry that may be another leader's: there is a gap between them, which shows after
    a crash, even where no index is missing, unless the term says whose it is.

    Raises:
        LiveIndexMissing: the log lacks a live entry that was not sent since it had applied it; nothing was changed.
        CorruptData: the state is not what the manifest says.
        StorageError: the disk refused.
        StorageError, Closed: the log refused.
    """
    manifest = incoming.manifest
    sent = IndexSet.from_sorted(entry.index for group in _groups(incoming) for entry in group.entries)
    log.pin(live.difference(sent)).release()
    kept = log.last_index
    try:
        is_behind = False
        for group in _groups(incoming):
            previous, entries = group.previous, group.entries
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
            # Before the folder says that it is in force, every entry that it needs is here, durably.
            snapshots.adopt(incoming, live)
            if log.state.index < manifest.index:
                log.install(SnapshotMeta(manifest.index, manifest.term, live))
    except CompactlibError:
        if snapshots.manifest == manifest:
            with contextlib.suppress(CompactlibError):
                log.close()
        else:
            # A log that the failure has closed is brought into order when it is opened.
            with contextlib.suppress(Closed):
                if log.last_index > kept:
                    log.reset(kept)
                    log.sync()
        raise


def _holds(log: RaftLog, entry: Entry) -> bool:
    found = log.read(entry.index)
    return isinstance(found, Entry) and found.term == entry.term


def _groups(incoming: IncomingState) -> Iterator[Entries]:
    """The entries that were sent, as they came."""
    for piece in incoming.entry_pieces():
        group = decode(piece)
        assert isinstance(group, Entries), group
        yield group
