# SPDX-License-Identifier: Apache-2.0
"""The follower's side of a transfer: a generator that is given frames, writes them to the disk, and yields answers.

Nothing touches the log before all of the snapshot is on the disk and was checked. What has come of the state stays for
the next stream, unless the disk refused, or the whole is not what the manifest says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from itertools import islice
from typing import TypeVar

from compactlib.errors import CompactlibError, CorruptData, InvalidInput, Stale, StorageError
from compactlib.raftlog.errors import FrameDamaged, RefusalReason, TransferBroken, TransferRefused
from compactlib.raftlog.messages import (
    OVERHEAD_BYTES,
    Accept,
    Entries,
    Installed,
    Live,
    Message,
    Offer,
    State,
    encode,
)
from compactlib.raftlog.model.values import MAX_PAYLOAD_BYTES
from compactlib.raftlog.raft_log import RaftLog
from compactlib.raftlog.replication.conversation import Talk, TransferReport, expected, refusing
from compactlib.raftlog.snapshots.incoming import Incoming

_MessageT = TypeVar("_MessageT", bound=Message)


class Receiver:
    """Receives one snapshot; `receiving` is its generator. Arguments are those of `receive_snapshot`."""

    def __init__(self, log: RaftLog, *, last_applied: int, machine_versions: tuple[int, int], max_entry_bytes: int,
                 max_live_bytes: int) -> None:
        if not 0 < max_entry_bytes <= MAX_PAYLOAD_BYTES - OVERHEAD_BYTES:
            raise InvalidInput(f"max_entry_bytes is {max_entry_bytes}; a frame takes entries of 1 to "
                               f"{MAX_PAYLOAD_BYTES - OVERHEAD_BYTES} bytes")
        if last_applied < log.state.index:
            raise InvalidInput(f"last_applied is {last_applied}, and the log's snapshot covers {log.state.index}: "
                               f"restore the machine by that first")
        self._log = log
        self._last_applied = last_applied
        self._machine_versions = machine_versions
        self._max_entry_bytes = max_entry_bytes
        self._max_live_bytes = max_live_bytes
        self._offer: Offer | None = None

    def receiving(self) -> Talk[TransferReport]:
        """Receive the snapshot, and put it in force."""
        try:
            offer = expected((yield b""), Offer, index=-1)
            self._offer = offer
            self._require_welcome(offer)
            report = yield from self._received(offer)
        except CompactlibError as error:
            yield from refusing(error, term=self._log.hard_state.term, last_applied=self._last_applied)
            raise
        # It is in force, whether the sender hears of it or not.
        with contextlib.suppress(TransferBroken):
            yield encode(Installed(report.index))
        return report

    def _require_welcome(self, offer: Offer) -> None:
        """Return if the snapshot of an offer is wanted; the term of its leader is durable then."""
        manifest, (lowest, highest) = offer.manifest, self._machine_versions
        if offer.log_id != self._log.log_id:
            raise self._refusal(RefusalReason.OTHER_LOG, f"the leader sends the log {offer.log_id!r}, the stream leads "
                                f"to {self._log.log_id!r}")
        try:
            self._log.record_hard_state(offer.term)
        except Stale:
            self._require_term(offer)
        if manifest.index <= self._last_applied:
            raise self._refusal(RefusalReason.ALREADY_APPLIED, f"entries up to {self._last_applied} are applied")
        if not lowest <= manifest.machine_version <= highest:
            raise self._refusal(RefusalReason.UNSUPPORTED, f"the state is of machine version "
                                f"{manifest.machine_version}, this member restores {lowest} to {highest}: upgrade it")
        if manifest.live_bytes > self._max_live_bytes:
            raise self._refusal(RefusalReason.TOO_LARGE, f"the live set has {manifest.live_bytes} bytes, the follower "
                                f"takes at most max_live_bytes={self._max_live_bytes}")

    def _received(self, offer: Offer) -> Talk[TransferReport]:
        manifest = offer.manifest
        incoming = self._log._begin_receiving(manifest)
        offset = resumed_at = incoming.state_bytes
        try:
            yield encode(Accept(self._last_applied, offset, self._max_entry_bytes))
            data = bytearray()
            while len(data) < manifest.live_bytes:
                live_piece = yield from self._next(Live)
                _require_next(live_piece, len(data), manifest.live_bytes)
                data += live_piece.data
            live = manifest.live_set(bytes(data), path="<stream>")
            needed = live.at_least(self._last_applied + 1)
            yield from self._take_entries(iter(needed), needed.count, manifest.term, incoming)
            while offset < manifest.state_bytes:
                piece = yield from self._next(State)
                _require_next(piece, offset, manifest.state_bytes)
                incoming.write(offset, piece.data)
                offset += len(piece.data)
            self._log._install(incoming, live)
        except (CorruptData, StorageError) as error:
            if not isinstance(error, FrameDamaged):
                with contextlib.suppress(StorageError):
                    incoming.discard()
            raise
        finally:
            incoming.close()
        return TransferReport(manifest=manifest, entries=needed.count, resumed_at=resumed_at)

    def _take_entries(self, needed: Iterator[int], count: int, term: int, incoming: Incoming) -> Talk[None]:
        """Write the needed entries beside the log; each frame follows the one before."""
        previous = self._last_applied
        while count:
            frame = yield from self._next(Entries)
            indexes = [entry.index for entry in frame.entries]
            due = list(islice(needed, len(indexes)))
            if frame.previous != previous or not indexes or indexes != due:
                raise FrameDamaged(path="<stream>", offset=0, expected=f"entries after {previous}: {due[:3]}, …",
                                   found=f"entries after {frame.previous}: {indexes[:3]}, …")
            if any(entry.term > term for entry in frame.entries):
                raise FrameDamaged(path="<stream>", offset=0, expected=f"entries of terms up to {term}",
                                   found="a higher one")
            incoming.write_entries(frame)
            previous, count = indexes[-1], count - len(indexes)

    def _next(self, kind: type[_MessageT]) -> Generator[bytes, bytes | None, _MessageT]:
        """The next message, as long as the sender leads."""
        assert self._offer is not None, "an offer comes first"
        message = expected((yield b""), kind, index=self._offer.manifest.index)
        self._require_term(self._offer)
        return message

    def _require_term(self, offer: Offer) -> None:
        term = self._log.hard_state.term
        if term > offer.term:
            raise self._refusal(RefusalReason.HIGHER_TERM, f"the sender leads in term {offer.term}, the follower knows "
                                f"term {term}")

    def _refusal(self, reason: RefusalReason, detail: str) -> TransferRefused:
        index = -1 if self._offer is None else self._offer.manifest.index
        return TransferRefused(reason=reason, detail=detail, index=index, term=self._log.hard_state.term,
                               last_applied=self._last_applied)


def _require_next(piece: Live | State, offset: int, end: int) -> None:
    if piece.offset != offset or not piece.data or offset + len(piece.data) > end:
        raise FrameDamaged(path="<stream>", offset=0, expected=f"bytes from {offset} on, up to {end}",
                           found=f"{len(piece.data)} from {piece.offset} on")
