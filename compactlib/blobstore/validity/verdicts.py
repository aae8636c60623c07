# SPDX-License-Identifier: Apache-2.0
"""Which records a compaction keeps: the rules as one pure function over all records of one blob.

Nothing in the rules comes back to life by time alone, so the answer for a record is two times: one that the reference
time must not pass (then a delete is in effect) and one that now must not pass (then the blob has expired).
`kept_until` gives both; `judge` compares them with the times of a compaction, and `lifetimes.py` leaves them open, so
that statistics of any time are sums.

Everything follows from the newest state of the blob: the record with the highest sequence among its PUT, DELETE and
UNDELETE, and whether a TTL_UPDATE has made it permanent. "Latest" is always the sequence, never the place in the log.

| record | newest state PUT | DELETE | UNDELETE |
|---|---|---|---|
| last PUT | kept unless expired | kept while the delete is not in effect, unless expired | kept unless expired |
| PUT and TTL_UPDATE before it | replaced | replaced | replaced |
| TTL_UPDATE | kept | kept while the delete is not in effect, or while its PUT stays in the log | kept |
| DELETE | superseded | the newest kept unless it is a removable tombstone | superseded |
| UNDELETE | superseded | superseded | the newest kept unless expired |

A delete is in effect strictly before the reference time. A blob is expired strictly after its expiry, at the time of
the copying, not at the reference time.

A blob that was put again, over an expired, a deleted or an outdone one, has several PUTs: the last one counts.

No older state comes back: the newest state of a blob, and a TTL_UPDATE, are kept as long as an older record of the blob
stays in the log, whatever else says that they may go; a PUT as long as one does that it has replaced; a tombstone as
long as any other one does. A record stays if its segment is not compacted, or is compacted in a later cycle, which may
never come.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import attrs

from compactlib.blobstore.index.entry_columns import hash_id
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry, RecordFlag, RecordKind
from compactlib.errors import CorruptData

_PUT, _DELETE, _TTL_UPDATE, _UNDELETE = map(int, RecordKind)
_TTL_UPDATED = int(RecordFlag.TTL_UPDATED)
FOREVER = (1 << 63) - 1
"""The time of what does not happen."""
_GONE = -1
MAX_REMEMBERED = 1_000_000
"""Beyond so many, no tombstone is purged in the rest of the compaction; the next one does it."""


class Verdict(enum.Enum):
    """The verdict on a record: kept, or dropped and why."""

    KEEP = "kept"
    EXPIRED = "its blob has expired"
    DELETED = "its blob was deleted"
    SUPERSEDED = "a later delete or undelete says more"
    REPLACED = "its blob was put again"
    ORPHANED = "it changes the time to live of a blob that is gone"
    PURGED = "a tombstone that is no longer needed"
    DUPLICATE = "an earlier cycle has copied it"


def nobody(entry: IndexEntry) -> bool:
    """The default of the questions that the rules ask: no."""
    return False


@attrs.frozen(kw_only=True)
class PurgeRules:
    """What a compaction may remove besides what is deleted or has expired.

    Attributes:
        purge_tombstones: whether deletes that are no longer needed go.
        seen_by_all_peers: asked about a tombstone whose PUT is gone: whether every peer that counts has read it.
            Without peers to ask, only expired tombstones go.
        had_put: asked about a tombstone without PUT: whether its PUT was there when the compaction began, so that the
            tombstone has to wait for the next one.
    """

    purge_tombstones: bool = False
    seen_by_all_peers: Callable[[IndexEntry], bool] = nobody
    had_put: Callable[[IndexEntry], bool] = nobody


@attrs.frozen(kw_only=True)
class Rules:
    """What a compaction judges records by.

    Attributes:
        reference_ms: deletes made strictly before it are in effect.
        now_ms: blobs that expire strictly before it have expired.
        purge: what else may go.
    """

    reference_ms: int
    now_ms: int
    purge: PurgeRules = PurgeRules()


class DroppedPuts:
    """Remembers which PUTs the cycles of one compaction have dropped: their tombstones stay until the next compaction.

    A tombstone outlives its PUT by one compaction at least, however many cycles that takes. 8 bytes of each id are
    remembered; a chance hit keeps a tombstone one compaction longer.

    Args:
        key: the store's incarnation.
        complete: whether it will have seen every cycle; not so in a compaction that an earlier process began.
    """

    def __init__(self, key: bytes, *, complete: bool) -> None:
        self._key = key
        self._complete = complete
        self._hashes: set[int] = set()

    def note(self, put: IndexEntry) -> None:
        """A PUT is dropped whose delete stays."""
        if len(self._hashes) >= MAX_REMEMBERED:
            self._complete = False
        if self._complete:
            self._hashes.add(hash_id(put.id, self._key))

    def had_put(self, tombstone: IndexEntry) -> bool:
        """Whether the PUT of this tombstone may have been there when the compaction began."""
        return not self._complete or hash_id(tombstone.id, self._key) in self._hashes


def expiry(expires_ms: int, flags: int) -> int:
    """The last time at which a blob whose newest record has this expiry and these flags has not expired."""
    return FOREVER if expires_ms < 0 or flags & _TTL_UPDATED else expires_ms


class BlobEnd(NamedTuple):
    """What the newest records of a blob say of its end.

    Attributes:
        newest: its newest PUT, DELETE or UNDELETE; `None` if only TTL updates are left of it.
        put: its last PUT, `None` if a compaction removed it.
        deleted_ms: when it was deleted, `FOREVER` if it is not.
        expires_ms: the last time at which it has not expired, `FOREVER` if it never does.
    """

    newest: IndexEntry | None
    put: IndexEntry | None
    deleted_ms: int
    expires_ms: int

    @classmethod
    def of(cls, history: Sequence[IndexEntry]) -> BlobEnd:
        """Of all its records, ascending by sequence; of copies of one record, the first counts."""
        newest = put = None
        is_permanent = False
        for entry in history:
            if entry.kind == _TTL_UPDATE:
                is_permanent = True
                continue
            if entry.kind == _PUT and (put is None or entry.sequence != put.sequence):
                put = entry
                is_permanent = False
            if newest is None or entry.sequence != newest.sequence:
                newest = entry
        if newest is None:
            return cls(None, None, FOREVER, FOREVER)
        return cls(newest, put, newest.op_time_ms if newest.kind == _DELETE else FOREVER,
                   FOREVER if is_permanent else expiry(newest.expires_ms, newest.flags))


class KeptUntil(NamedTuple):
    """Until when a record is kept, if nothing more is written about its blob.

    Attributes:
        reference_ms: the last reference time at which it is kept.
        now_ms: the last time at which it is kept; below 0 if it never is.
        tied: whether it may be kept only because of a record in another segment.
        why: what its verdict is once that time has passed.
    """

    reference_ms: int
    now_ms: int
    tied: bool
    why: Verdict


def kept_until(entry: IndexEntry, blob: BlobEnd, history: Sequence[IndexEntry], rules: PurgeRules,
               compacting: Mapping[SegmentName, int]) -> KeptUntil:
    """The rules: until when a compaction of these segments keeps a record. O(n) in the records of the blob.

    Args:
        entry: the record, in one of the segments.
        blob: what its blob's history says of the blob's end.
        history: every record of the blob in the store.
        rules: what else may go.
        compacting: the segments that are compacted together, and as which of them, counted from 0.
    """
    newest, put, deleted, expires = blob
    covers = len(history) > 1 and newest is not None and (
        entry is newest or entry.kind == _TTL_UPDATE) and _uncovers(entry, history, compacting)
    if newest is None:
        return KeptUntil(FOREVER, _GONE, False, Verdict.ORPHANED)
    if put is not None and entry.sequence < put.sequence and entry.kind in (_PUT, _TTL_UPDATE):
        return KeptUntil(FOREVER, _GONE, False, Verdict.REPLACED)
    if entry.kind == _PUT:
        puts = [other for other in history if other.kind == _PUT]
        if len(puts) > 1 and not covers and _uncovers(entry, puts, compacting):
            return KeptUntil(FOREVER, FOREVER, deleted != FOREVER or expires != FOREVER, Verdict.EXPIRED)
        return KeptUntil(deleted, FOREVER if covers else expires, covers and expires != FOREVER, Verdict.EXPIRED)
    if entry.kind == _TTL_UPDATE:
        put_stays = put is not None and put.segment not in compacting
        return KeptUntil(FOREVER if put_stays else deleted, FOREVER, put_stays and deleted != FOREVER, Verdict.ORPHANED)
    if entry is not newest:
        return KeptUntil(FOREVER, _GONE, False, Verdict.SUPERSEDED)
    if entry.kind == _DELETE:
        until, why = FOREVER if put is not None else _tombstone_until(entry, rules), Verdict.PURGED
    else:
        until, why = expires, Verdict.EXPIRED
    return KeptUntil(FOREVER, FOREVER if covers else until, covers and until != FOREVER, why)


def _uncovers(entry: IndexEntry, history: Sequence[IndexEntry], compacting: Mapping[SegmentName, int]) -> bool:
    """Whether a record that `entry` has outdone would be left without it, until a later cycle at least."""
    turn, never, sequence = compacting.get(entry.segment, -1), len(compacting), entry.sequence
    for other in history:
        if (other.sequence != sequence and (other.sequence < sequence or entry.kind == _DELETE)
                and compacting.get(other.segment, never) > turn):
            return True
    return False


def _tombstone_until(tombstone: IndexEntry, rules: PurgeRules) -> int:
    """The last time at which a tombstone whose PUT is gone is kept."""
    if not rules.purge_tombstones or rules.had_put(tombstone):
        return FOREVER
    return _GONE if rules.seen_by_all_peers(tombstone) else expiry(tombstone.expires_ms, 0)


def judge(history: Sequence[IndexEntry], rules: Rules, compacting: Mapping[SegmentName, int]) -> list[Verdict]:
    """The verdict on each record of one blob if the segments `compacting` are compacted together.

    The answer for a record in a segment that is not compacted means nothing. O(n^2) in the records of the blob.

    Args:
        history: every record of the blob in the store, in any order.
        rules: times and questions.
        compacting: the segments whose PUTs may go, and as which of them, counted from 0: a TTL_UPDATE outlives its
            blob's delete while its PUT stays behind in another.

    Raises:
        CorruptData: the history holds two different records of one sequence.
    """
    if len(history) == 1:
        return [judge_one(history[0], history, rules, compacting)]
    verdicts = [Verdict.DUPLICATE] * len(history)
    distinct = _without_duplicates(history)
    blob = BlobEnd.of([history[place] for place in distinct])
    for place in distinct:
        verdicts[place] = _judge(history[place], blob, history, rules, compacting)
    return verdicts


def judge_one(entry: IndexEntry, history: Sequence[IndexEntry], rules: Rules, compacting: Mapping[SegmentName, int]
              ) -> Verdict:
    """What `judge` says about one record of a blob, whose history ascends by sequence.

    Raises:
        CorruptData: the history holds two different records of one sequence.
    """
    if len(history) == 1 and entry.kind == _PUT:
        # Most blobs were put once and never touched again.
        return Verdict.KEEP if rules.now_ms <= expiry(entry.expires_ms, entry.flags) else Verdict.EXPIRED
    place, before = history.index(entry), -1
    for other in history:
        if other.sequence <= before:
            return judge(history, rules, compacting)[place]
        before = other.sequence
    return _judge(history[place], BlobEnd.of(history), history, rules, compacting)


def _judge(entry: IndexEntry, blob: BlobEnd, history: Sequence[IndexEntry], rules: Rules,
           compacting: Mapping[SegmentName, int]) -> Verdict:
    reference_ms, now_ms, _, why = kept_until(entry, blob, history, rules.purge, compacting)
    if rules.reference_ms > reference_ms and entry.kind == _PUT:
        return Verdict.DELETED
    return why if rules.reference_ms > reference_ms or rules.now_ms > now_ms else Verdict.KEEP


def _without_duplicates(history: Sequence[IndexEntry]) -> list[int]:
    """One place a sequence, that of the first segment. What the copies say has to be the same."""
    order = sorted(range(len(history)), key=lambda place: (history[place].sequence, history[place].segment))
    kept: list[int] = []
    for place in order:
        entry = history[place]
        if kept and history[kept[-1]].sequence == entry.sequence:
            first = history[kept[-1]]
            if _content(first) != _content(entry):
                raise CorruptData(
                    path=entry.segment.log_file, offset=entry.offset,
                    expected="no two different records of one sequence",
                    found=f"record {entry.sequence} of {entry.id!r} beside the one at {first.position}")
            continue
        kept.append(place)
    return kept


def _content(entry: IndexEntry) -> tuple[int, int, int, int]:
    # A hard delete may have reached one copy and not yet the other: flags are left out.
    return entry.kind, entry.life_version, entry.op_time_ms, entry.size
