# SPDX-License-Identifier: Apache-2.0
"""Which records a compaction keeps: the rules as one pure function over all records of one blob.

Nothing in the rules comes back to life by time alone, so the answer for a record is two times: one that the reference
time must not pass (then a delete is in effect) and one that now must not pass (then the blob has expired).
`kept_until` gives both; `judge` compares them with the times of a compaction, and `lifetimes` leaves them open, so that
statistics of any time are sums.

Everything follows from the newest state of the blob: the record with the highest sequence among its PUT, DELETE and
UNDELETE, and whether a TTL_UPDATE has made it permanent. "Latest" is always the sequence, never the place in the log.

| record | newest state PUT | DELETE | UNDELETE |
|---|---|---|---|
| last PUT | kept unless expired | kept while the delete is not in effect, unless expired | kept unless expired |
| PUT and TTL_UPDATE before it | replaced | replaced | replaced |
| TTL_UPDATE | kept | kept while the delete is not in effect, or its PUT's segment is not compacted with it | kept |
| DELETE | superseded | the newest kept unless it is a removable tombstone | superseded |
| UNDELETE | superseded | superseded | the newest kept unless expired |

A delete is in effect strictly before the reference time. A blob is expired strictly after its expiry, at the time of
the copying, not at the reference time.

A blob that was put again, over an expired, a deleted or a superseded one, has several PUTs: the last one counts.

Invariant: no record is dropped while an older record of the same blob survives it, since the older state would become
visible again. A tombstone outlives all other records of its blob. A record survives if its segment is not compacted in
the same step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry, RecordFlag, RecordKind

_PUT, _DELETE, _TTL_UPDATE, _UNDELETE = map(int, RecordKind)
_TTL_UPDATED = int(RecordFlag.TTL_UPDATED)
FOREVER = (1 << 63) - 1
"""The time of what does not happen."""
_GONE = -1


class Verdict(enum.Enum):
    """The verdict on a record: kept, or dropped and why."""

    KEEP = "kept"
    EXPIRED = "its blob has expired"
    DELETED = "its blob was deleted"
    SUPERSEDED = "a later delete or undelete says more"
    REPLACED = "its blob was put again"
    ORPHANED = "it changes the time to live of a blob that is gone"
    PURGED = "a tombstone that is no longer needed"


def never(entry: IndexEntry) -> bool:
    """The default of the questions that the rules ask: no."""
    return False


@attrs.frozen(kw_only=True)
class PurgeRules:
    """What a compaction may remove besides what is deleted or has expired.

    Attributes:
        purge_tombstones: whether deletes that are no longer needed go.
        seen_by_all_peers: asked about a tombstone whose PUT is gone: whether every peer that counts has read it.
            Without peers to ask, only expired tombstones go.
    """

    purge_tombstones: bool = False
    seen_by_all_peers: Callable[[IndexEntry], bool] = never


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
        why: what its verdict is once that time has passed.
    """

    reference_ms: int
    now_ms: int
    why: Verdict


def kept_until(entry: IndexEntry, blob: BlobEnd, history: Sequence[IndexEntry], rules: PurgeRules,
               compacting: Collection[SegmentName]) -> KeptUntil:
    """The rules: until when a compaction of these segments keeps a record. O(n) in the records of the blob.

    Args:
        entry: the record, in one of the segments.
        blob: what its blob's history says of the blob's end.
        history: every record of the blob in the store.
        rules: what else may go.
        compacting: the segments that are compacted together.
    """
    newest, put, deleted, expires = blob
    if newest is None:
        return KeptUntil(FOREVER, _GONE, Verdict.ORPHANED)
    if put is not None and entry.sequence < put.sequence and entry.kind in (_PUT, _TTL_UPDATE):
        return KeptUntil(FOREVER, _GONE, Verdict.REPLACED)
    is_newest = entry.sequence == newest.sequence
    must_outlive = len(history) > 1 and (is_newest or entry.kind == _TTL_UPDATE) and _outlives(
        entry, history, compacting)
    if entry.kind == _PUT:
        puts = [other for other in history if other.kind == _PUT]
        if len(puts) > 1 and not must_outlive and _outlives(entry, puts, compacting):
            return KeptUntil(FOREVER, FOREVER, Verdict.EXPIRED)
        return KeptUntil(deleted, FOREVER if must_outlive else expires, Verdict.EXPIRED)
    if entry.kind == _TTL_UPDATE:
        put_stays = put is not None and put.segment not in compacting
        return KeptUntil(FOREVER if put_stays else deleted, FOREVER, Verdict.ORPHANED)
    if not is_newest:
        return KeptUntil(FOREVER, _GONE, Verdict.SUPERSEDED)
    if entry.kind == _DELETE:
        until, why = FOREVER if put is not None else _tombstone_until(entry, rules), Verdict.PURGED
    else:
        until, why = expires, Verdict.EXPIRED
    return KeptUntil(FOREVER, FOREVER if must_outlive else until, why)


def _outlives(entry: IndexEntry, history: Sequence[IndexEntry], compacting: Collection[SegmentName]) -> bool:
    """Whether a record that `entry` supersedes stays in a segment that is not compacted."""
    return any(other.sequence != entry.sequence and (other.sequence < entry.sequence or entry.kind == _DELETE)
               and other.segment not in compacting for other in history)


def _tombstone_until(tombstone: IndexEntry, rules: PurgeRules) -> int:
    """The last time at which a tombstone whose PUT is gone is kept."""
    if not rules.purge_tombstones:
        return FOREVER
    return _GONE if rules.seen_by_all_peers(tombstone) else expiry(tombstone.expires_ms, 0)


def judge(entry: IndexEntry, history: Sequence[IndexEntry], rules: Rules, compacting: Collection[SegmentName],
          end: BlobEnd | None = None) -> Verdict:
    """Return the verdict on a record if these segments, of which one holds it, are compacted together. O(n).

    Args:
        entry: the record.
        history: every record of its blob, ascending by sequence.
        rules: times and questions.
        compacting: the segments.
        end: what the history says of the blob's end, if that is known.
    """
    if len(history) == 1 and entry.kind == _PUT:
        # Most blobs were put once and never touched again.
        return Verdict.KEEP if rules.now_ms <= expiry(entry.expires_ms, entry.flags) else Verdict.EXPIRED
    reference_ms, now_ms, why = kept_until(entry, BlobEnd.of(history) if end is None else end, history, rules.purge,
                                           compacting)
    if rules.reference_ms > reference_ms and entry.kind == _PUT:
        return Verdict.DELETED
    return why if rules.reference_ms > reference_ms or rules.now_ms > now_ms else Verdict.KEEP


class Lifetime(NamedTuple):
    """Until when a record is kept by a compaction of its segment, if nothing more is written about its blob.

    Attributes:
        segment: where the record lies.
        size: its bytes.
        reference_until: the last reference time at which it is kept, milliseconds.
        now_until: the last time at which it is kept, milliseconds.
        offset: where the record begins.
    """

    segment: SegmentName
    size: int
    reference_until: int
    now_until: int
    offset: int

    def is_kept(self, reference_ms: int, now_ms: int) -> bool:
        """Whether a compaction at these times keeps it."""
        return reference_ms <= self.reference_until and now_ms <= self.now_until


def lifetimes(history: Sequence[IndexEntry], rules: PurgeRules) -> Iterator[Lifetime]:
    """Yield the lifetimes of all records of one blob; a record that is not kept at any time is left out.

    Args:
        history: every record of the blob in the store, ascending by sequence.
        rules: what else may go.
    """
    end = BlobEnd.of(history)
    for entry in history:
        reference_ms, now_ms, _ = kept_until(entry, end, history, rules, (entry.segment,))
        if now_ms >= 0:
            yield Lifetime(entry.segment, entry.size, reference_ms, now_ms, entry.offset)
