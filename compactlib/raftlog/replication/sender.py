# SPDX-License-Identifier: Apache-2.0
"""The leader's side of a transfer: a generator that yields frames and is given the receiver's answers."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.raftlog.errors import FrameDamaged, LiveIndexMissing, RefusalReason, TransferRefused
from compactlib.raftlog.messages import (
    MAX_FRAME_ENTRIES,
    Accept,
    Entries,
    Installed,
    Live,
    Message,
    Offer,
    State,
    encode,
)
from compactlib.raftlog.model.snapshot_meta import SnapshotManifest
from compactlib.raftlog.model.values import Entry
from compactlib.raftlog.pins import Pin
from compactlib.raftlog.raft_log import RaftLog
from compactlib.raftlog.replication.conversation import Talk, TransferReport, expected, refusing
from compactlib.raftlog.snapshots.state_reader import StateReader


@attrs.frozen
class Source:
    """The newest snapshot of a log, held in place while it is sent.

    Attributes:
        manifest: of the snapshot.
        live: its live set, of which every entry is pinned.
        pin: these entries.
        state: open for reading.
        kept_from: from this index on the log holds every entry, so that a follower that has applied it needs entries
            and no snapshot.
    """

    manifest: SnapshotManifest
    live: IndexSet
    pin: Pin
    state: StateReader
    kept_from: int

    @classmethod
    def held(cls, log: RaftLog) -> Source:
        """Pin and open the newest snapshot.

        Raises:
            NotFound: there is none yet.
            CorruptData, LiveIndexMissing: it is damaged, or the log does not hold what it names.
            StorageError: the disk refused.
        """
        while True:
            row = log.state
            state = log.open_state()
            try:
                pin = log.pin(row.live)
            except LiveIndexMissing:
                state.close()
                if log.state is row:
                    raise
                continue
            except BaseException:
                state.close()
                raise
            if state.manifest == row.manifest:
                return cls(state.manifest, row.live, pin, state, row.kept_from)
            # A newer snapshot has taken its place.
            pin.release()
            state.close()

    def release(self) -> None:
        """Let pins and files go."""
        self.pin.release()
        self.state.close()


def sending(log: RaftLog, *, term: int, chunk_bytes: int) -> Talk[TransferReport]:
    """Send the log's newest snapshot; see `send_snapshot`."""
    if chunk_bytes < 1:
        raise InvalidInput(f"chunk_bytes is {chunk_bytes}; give at least 1")
    source = Source.held(log)
    index, last_applied = source.manifest.index, -1
    try:
        frame = (yield encode(Offer(term, source.manifest, log.log_id))) or (yield b"")
        accept = expected(frame, Accept, index=index)
        last_applied = accept.last_applied
        if last_applied >= source.kept_from:
            raise TransferRefused(
                reason=RefusalReason.ALREADY_APPLIED, index=index, term=term, last_applied=last_applied,
                detail=f"the follower has applied up to {last_applied}, and the leader's log holds every entry from "
                f"{source.kept_from} on; send those")
        needed = source.live.at_least(last_applied + 1)
        answer = None
        for message in _parts(source, needed, accept, term, chunk_bytes):
            answer = yield encode(message)
            if answer is not None:
                # The follower does not want the rest.
                break
        installed = expected(answer or (yield b""), Installed, index=index)
        if installed.index != index:
            raise FrameDamaged(path="<stream>", offset=0, expected=f"snapshot {index} installed",
                               found=f"{installed.index}")
        return TransferReport(manifest=source.manifest, entries=needed.count, resumed_at=accept.state_offset)
    except CompactlibError as error:
        yield from refusing(error, term=term, last_applied=last_applied)
        raise
    finally:
        source.release()


def _parts(source: Source, needed: IndexSet, accept: Accept, term: int, chunk_bytes: int) -> Iterator[Message]:
    data = source.live.to_bytes()
    for offset in range(0, len(data), chunk_bytes):
        yield Live(offset, data[offset:offset + chunk_bytes])
    previous = accept.last_applied
    for entries in _entry_groups(source, needed, accept, term, chunk_bytes):
        yield Entries(previous, entries)
        previous = entries[-1].index
    manifest = source.manifest
    offset, crc = accept.state_offset, 0
    while offset < manifest.state_bytes:
        data = source.state.read(offset, chunk_bytes)
        if not data:
            raise CorruptData(path="<the state>", offset=offset, expected=f"{manifest.state_bytes} bytes",
                              found=f"{offset}")
        crc = crc32(data, crc)
        yield State(offset, data)
        offset += len(data)
    if not accept.state_offset and crc != manifest.state_crc:
        raise CorruptData(path=f"<the state of snapshot {manifest.index}>", offset=0, found=f"CRC {crc:#010x}",
                          expected=f"CRC {manifest.state_crc:#010x}; take another snapshot")


def _entry_groups(source: Source, needed: IndexSet, accept: Accept, term: int,
                  chunk_bytes: int) -> Iterator[tuple[Entry, ...]]:
    group: list[Entry] = []
    size = 0
    for index in needed:
        entry = source.pin.read(index)
        size += len(entry.payload)
        if len(entry.payload) > accept.max_entry_bytes:
            raise TransferRefused(
                reason=RefusalReason.TOO_LARGE, index=source.manifest.index, term=term,
                last_applied=accept.last_applied, detail=f"live entry {index} has {len(entry.payload)} bytes, the "
                f"follower takes at most max_entry_bytes={accept.max_entry_bytes}; raise that there")
        if group and (size > chunk_bytes or len(group) == MAX_FRAME_ENTRIES):
            yield tuple(group)
            group, size = [], len(entry.payload)
        group.append(entry)
    if group:
        yield tuple(group)
