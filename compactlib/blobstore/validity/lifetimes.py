"""Until when each record of a blob has to be kept: the compaction's rules with the times left open.

`validity.judge` says what becomes of a record at one reference time and one now. Nothing in its rules comes back to
life by time alone, so the same answer is two times for each record: one that the reference time must not pass (then
a delete is in effect) and one that now must not pass (then the blob has expired). From these, the statistics of any
time are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import attrs

from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry, RecordFlag, RecordKind
from compactlib.blobstore.validity.verdicts import nobody

FOREVER = (1 << 63) - 1
"""The time of what does not happen."""

_PUT, _DELETE, _TTL_UPDATE, _UNDELETE = map(int, RecordKind)
_TTL_UPDATED = int(RecordFlag.TTL_UPDATED)


class Lifetime(NamedTuple):
    """Until when a record is kept by a compaction of its segment, if nothing more is written about its blob.

    Attributes:
        segment: where the record lies.
        size: its bytes.
        container: account and container of a PUT, whose bytes count for them; `None` for every other record.
        reference_until: the last reference time at which it is kept, milliseconds.
        now_until: the last time at which it is kept, milliseconds.
        id_bytes: length of its id.
        tied: whether it may be kept only because of a record in another segment, and may go if both are compacted.
    """

    segment: SegmentName
    size: int
    container: tuple[int, int] | None
    reference_until: int
    now_until: int
    id_bytes: int = 0
    tied: bool = False

    def is_kept(self, reference_ms: int, now_ms: int) -> bool:
        """Whether a compaction at these times keeps it."""
        return reference_ms <= self.reference_until and now_ms <= self.now_until


@attrs.frozen(kw_only=True)
class PurgeRules:
    """What else a compaction may remove; the same questions as in `validity.Rules`.

    Attributes:
        purge_tombstones: whether deletes that are no longer needed go.
        seen_by_all_peers: asked about a tombstone whose PUT is gone: whether every peer that counts has read it.
        is_container_gone: asked about a record: whether its account and container are gone for good.
    """

    purge_tombstones: bool = False
    seen_by_all_peers: Callable[[IndexEntry], bool] = nobody
    is_container_gone: Callable[[IndexEntry], bool] = nobody


def lifetimes(history: Sequence[IndexEntry], rules: PurgeRules) -> Iterator[Lifetime]:
    """The lifetimes of all records of one blob; a record that is not kept at any time is left out.

    Args:
        history: every record of the blob in the store, ascending by sequence; of copies of one record, as there are
            between two cycles of a compaction, that of the first segment first.
        rules: what else may go.
    """
    newest = put = None
    is_permanent = False
    for entry in history:
        if entry.kind == _TTL_UPDATE:
            is_permanent = True
            continue
        if entry.kind == _PUT and put is None:
            put = entry
        if newest is None or entry.sequence != newest.sequence:
            newest = entry
    if newest is None:
        return
    is_permanent = is_permanent or bool(newest.flags & _TTL_UPDATED)
    expires = FOREVER if is_permanent or newest.expires_ms < 0 else newest.expires_ms
    effective = newest.op_time_ms if newest.kind == _DELETE else FOREVER
    before = -1
    for entry in history:
        if entry.sequence == before:
            continue
        before = entry.sequence
        covers = (entry is newest or entry.kind == _TTL_UPDATE) and _covers(entry, history)
        id_bytes = len(entry.id)
        if rules.is_container_gone(entry):
            if covers:
                yield Lifetime(entry.segment, entry.size, None, FOREVER, FOREVER, id_bytes, True)
        elif entry.kind == _PUT:
            yield Lifetime(entry.segment, entry.size, (entry.account, entry.container), effective,
                           FOREVER if covers else expires, id_bytes, covers and expires != FOREVER)
        elif entry.kind == _TTL_UPDATE:
            put_stays = put is not None and put.segment != entry.segment
            yield Lifetime(entry.segment, entry.size, None, FOREVER if put_stays else effective, FOREVER, id_bytes,
                           put_stays and effective != FOREVER)
        elif entry is newest:
            until = expires if entry.kind == _UNDELETE else _tombstone_until(entry, put, rules)
            if covers or until >= 0:
                yield Lifetime(entry.segment, entry.size, None, FOREVER, FOREVER if covers else until, id_bytes,
                               covers and until != FOREVER)


def _covers(entry: IndexEntry, history: Sequence[IndexEntry]) -> bool:
    """Whether a record in another segment would mean something else without this one."""
    return any(other.segment != entry.segment and other.sequence != entry.sequence for other in history
               if other.sequence < entry.sequence or entry.kind == _DELETE)


def _tombstone_until(tombstone: IndexEntry, put: IndexEntry | None, rules: PurgeRules) -> int:
    """The last time at which a tombstone is kept; -1 if it may go whatever the time."""
    if put is not None or not rules.purge_tombstones:
        return FOREVER
    if rules.seen_by_all_peers(tombstone):
        return -1
    return FOREVER if tombstone.expires_ms < 0 else tombstone.expires_ms
