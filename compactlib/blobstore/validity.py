# SPDX-License-Identifier: Apache-2.0
"""The verdict on a record, kept or dropped: the rules as one pure function over all records of one blob.

A record that time has made invalid stays invalid. So two times are its lifetime: the last reference time at which it is
kept (after it, a delete is in effect) and the last present time (after it, the blob has expired). `kept_until` returns
both, and `judge` compares them with the times of a compaction. Statistics of any time are sums over `lifetimes`.

All rules follow from the newest state of the blob: the record with the highest sequence among its PUT, DELETE and
UNDELETE, and whether a TTL_UPDATE has made it permanent. "Newest" refers to the sequence, not to the place in the log.

| record | newest state PUT | DELETE | UNDELETE |
|---|---|---|---|
| last PUT | kept unless expired | kept while the delete is not in effect, unless expired | kept unless expired |
| PUT and TTL_UPDATE before it | replaced | replaced | replaced |
| TTL_UPDATE | kept | kept while the delete is not in effect, or its PUT's segment is not compacted with it | kept |
| DELETE | superseded | the newest kept unless it is a removable tombstone | superseded |
| UNDELETE | superseded | superseded | the newest kept unless expired |

A delete is in effect strictly before the reference time. A blob is expired strictly after its expiry, at the time of
the copying, not at the reference time.

A blob that was put again, over an expired, a deleted or a superseded blob, has several PUTs: the last PUT counts.

Invariant: no record is dropped while an older record of the same blob survives, since the older state would become
visible again. A tombstone outlives all other records of its blob. A record survives if its segment is not compacted in
the same step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import attrs

from compactlib.blobstore.blobs import FOREVER, BlobState, blob_state, expiry
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry, RecordKind

_PUT, _DELETE, _TTL_UPDATE, _UNDELETE = map(int, RecordKind)
_GONE = -1


class Verdict(enum.Enum):
    """The verdict on a record: kept, or dropped and why."""

    KEEP = "kept"
    EXPIRED = "its blob has expired"
    DELETED = "its blob was deleted"
    SUPERSEDED = "a later delete or undelete supersedes it"
    REPLACED = "its blob was put again"
    ORPHANED = "it changes the time to live of a blob that was dropped"
    PURGED = "a tombstone that is no longer needed"


def never(entry: IndexEntry) -> bool:
    """Return `False`: the default of `seen_by_all_peers`."""
    return False


Purge: TypeAlias = "Callable[[IndexEntry], bool] | None"
"""Returns whether every peer has read this tombstone without a PUT. It is removed then, or once it has expired. `None`:
tombstones stay."""


@attrs.frozen(kw_only=True)
class Rules:
    """The times and rules of one compaction."""

    reference_ms: int  # deletes made strictly before it are in effect
    now_ms: int  # blobs that expire strictly before it have expired
    purge: Purge = None


def kept_until(entry: IndexEntry, blob: BlobState, history: Sequence[IndexEntry], purge: Purge,
               compacting: Collection[SegmentName]) -> tuple[int, int, Verdict]:
    """Return until when a compaction keeps a record, if nothing more is written about its blob: the rules. O(n).

    `compacting` are the segments that are compacted together, that of the record included. The result is the last
    reference time and the last present time (below 0 for never) at which it is kept, and its verdict after that.
    """
    newest, put = blob.deciding, blob.put
    if newest is None:
        return FOREVER, _GONE, Verdict.ORPHANED
    if put is not None and entry.sequence < put.sequence and entry.kind in (_PUT, _TTL_UPDATE):
        return FOREVER, _GONE, Verdict.REPLACED
    deleted, expires = blob.deleted_ms, expiry(blob.newest.expires_ms, blob.newest.flags)
    is_newest = entry.sequence == newest.sequence
    must_outlive = len(history) > 1 and (is_newest or entry.kind == _TTL_UPDATE) and _outlives(
        entry, history, compacting)
    if entry.kind == _PUT:
        puts = [other for other in history if other.kind == _PUT]
        if len(puts) > 1 and not must_outlive and _outlives(entry, puts, compacting):
            return FOREVER, FOREVER, Verdict.EXPIRED
        return deleted, FOREVER if must_outlive else expires, Verdict.EXPIRED
    if entry.kind == _TTL_UPDATE:
        put_stays = put is not None and put.segment not in compacting
        return FOREVER if put_stays else deleted, FOREVER, Verdict.ORPHANED
    if not is_newest:
        return FOREVER, _GONE, Verdict.SUPERSEDED
    if entry.kind == _DELETE:
        until, why = FOREVER if put is not None else _tombstone_until(entry, purge), Verdict.PURGED
    else:
        until, why = expires, Verdict.EXPIRED
    return FOREVER, FOREVER if must_outlive else until, why


def _outlives(entry: IndexEntry, history: Sequence[IndexEntry], compacting: Collection[SegmentName]) -> bool:
    """Whether a segment that is not compacted holds a record that `entry` supersedes."""
    return any(other.sequence != entry.sequence and (other.sequence < entry.sequence or entry.kind == _DELETE)
               and other.segment not in compacting for other in history)


def _tombstone_until(tombstone: IndexEntry, purge: Purge) -> int:
    """Return the last time at which a tombstone without a PUT is kept."""
    if purge is None:
        return FOREVER
    return _GONE if purge(tombstone) else expiry(tombstone.expires_ms, 0)


def judge(entry: IndexEntry, history: Sequence[IndexEntry], rules: Rules, compacting: Collection[SegmentName],
          blob: BlobState | None = None) -> Verdict:
    """Return the verdict on a record of one of these segments, if they are compacted together. O(n).

    The history has every record of its blob, ascending by sequence.
    """
    if len(history) == 1 and entry.kind == _PUT:
        # Most blobs were put once and never touched again.
        return Verdict.KEEP if rules.now_ms <= expiry(entry.expires_ms, entry.flags) else Verdict.EXPIRED
    blob = blob or blob_state(history)
    assert blob is not None, "the record is in the history"
    reference_ms, now_ms, why = kept_until(entry, blob, history, rules.purge, compacting)
    if rules.reference_ms > reference_ms and entry.kind == _PUT:
        return Verdict.DELETED
    return why if rules.reference_ms > reference_ms or rules.now_ms > now_ms else Verdict.KEEP


class Lifetime(NamedTuple):
    """Until when a compaction of its segment keeps a record, if nothing more is written about its blob."""

    segment: SegmentName  # the record's segment
    size: int  # the record's bytes
    reference_until: int  # the last reference time at which it is kept, milliseconds
    now_until: int  # the last present time at which it is kept, milliseconds
    offset: int  # the record's offset

    def is_kept(self, reference_ms: int, now_ms: int) -> bool:
        """Whether a compaction at these times keeps it."""
        return reference_ms <= self.reference_until and now_ms <= self.now_until


def lifetimes(history: Sequence[IndexEntry], purge: Purge) -> Iterator[Lifetime]:
    """Yield the lifetimes of the records of one blob, ascending by sequence, that are kept at any time."""
    blob = blob_state(history)
    assert blob is not None, "a blob has records"
    for entry in history:
        reference_ms, now_ms, _ = kept_until(entry, blob, history, purge, (entry.segment,))
        if now_ms >= 0:
            yield Lifetime(entry.segment, entry.size, reference_ms, now_ms, entry.offset)
