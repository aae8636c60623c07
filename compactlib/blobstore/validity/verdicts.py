"""Which records a compaction keeps: the rules as one pure function over all records of one blob.

Everything follows from the newest state of the blob: the record with the highest sequence among its PUT, DELETE and
UNDELETE, and whether a TTL_UPDATE has made it permanent. "Latest" is always the sequence, never the place in the log.

| record | newest state PUT | DELETE | UNDELETE |
|---|---|---|---|
| PUT | kept unless expired | kept while the delete is not in effect, unless expired | kept unless expired |
| TTL_UPDATE | kept | kept while the delete is not in effect, or while its PUT stays in the log | kept |
| DELETE | superseded | the newest kept unless it is a removable tombstone | superseded |
| UNDELETE | superseded | superseded | the newest kept unless expired |

A delete is in effect strictly before the reference time. A blob is expired strictly after its expiry, at the time of
the copying, not at the reference time.

No older state comes back: the newest state of a blob, and a TTL_UPDATE, are kept as long as an older record of the blob
stays in the log, whatever else says that they may go; a tombstone as long as any other one does. A record stays if its
segment is not compacted, or is compacted in a later cycle, which may never come.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence

import attrs

from compactlib.blobstore.index.entry_columns import hash_id
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry, RecordFlag, RecordKind
from compactlib.errors import CorruptData

_PUT, _DELETE, _TTL_UPDATE, _UNDELETE = map(int, RecordKind)
_TTL_UPDATED = int(RecordFlag.TTL_UPDATED)
MAX_REMEMBERED = 1_000_000
"""Beyond so many, no tombstone is purged in the rest of the compaction; the next one does it."""


class Verdict(enum.Enum):
    """What becomes of a record, and why."""

    KEEP = "kept"
    EXPIRED = "its blob has expired"
    DELETED = "its blob was deleted"
    SUPERSEDED = "a later delete or undelete says more"
    ORPHANED = "it changes the time to live of a blob that is gone"
    PURGED = "a tombstone that is no longer needed"
    DUPLICATE = "an earlier cycle has copied it"
    CONTAINER = "its container is gone"


def nobody(entry: IndexEntry) -> bool:
    """The default of both questions that the rules ask: no."""
    return False


@attrs.frozen(kw_only=True)
class Rules:
    """What a compaction judges records by.

    Attributes:
        reference_ms: deletes made strictly before it are in effect.
        now_ms: blobs that expire strictly before it have expired.
        purge_tombstones: whether deletes that are no longer needed go.
        seen_by_all_peers: asked about a tombstone: whether every peer that counts has read it. Without peers to ask,
            only expired tombstones go.
        had_put: asked about a tombstone without PUT: whether its PUT was there when the compaction began, so that the
            tombstone has to wait for the next one.
        is_container_gone: asked about a record: whether its account and container are gone for good.
    """

    reference_ms: int
    now_ms: int
    purge_tombstones: bool = False
    seen_by_all_peers: Callable[[IndexEntry], bool] = nobody
    had_put: Callable[[IndexEntry], bool] = nobody
    is_container_gone: Callable[[IndexEntry], bool] = nobody

    def in_effect(self, delete: IndexEntry) -> bool:
        """Whether a delete counts already."""
        return delete.op_time_ms < self.reference_ms


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


def judge(history: Sequence[IndexEntry], rules: Rules, compacting: Collection[SegmentName]) -> list[Verdict]:
    """What becomes of each record of one blob if the segments `compacting` are compacted together.

    The answer for a record in a segment that is not compacted means nothing. O(n log n) in the records of the blob.

    Args:
        history: every record of the blob in the store, in any order.
        rules: times and questions.
        compacting: the segments whose PUTs may go: a TTL_UPDATE outlives its blob's delete while its PUT stays behind
            in another.

    Raises:
        CorruptData: the history holds two PUTs, or two different records of one sequence.
    """
    if len(history) == 1:
        # Most blobs were put once and never touched again.
        return [_judge_alone(history[0], rules)]
    order = sorted(range(len(history)), key=lambda place: (history[place].sequence, history[place].segment))
    verdicts = [Verdict.DUPLICATE] * len(history)
    distinct = _without_duplicates(history, order)
    blob = _Blob.of([history[place] for place in distinct])
    for place in distinct:
        entry = history[place]
        verdict = Verdict.CONTAINER if rules.is_container_gone(entry) else blob.judge(entry, rules, compacting)
        if verdict in _MAY_UNCOVER and blob.is_covering(entry) and _uncovers(entry, history, compacting):
            verdict = Verdict.KEEP
        verdicts[place] = verdict
    return verdicts


_MAY_UNCOVER = (Verdict.EXPIRED, Verdict.PURGED, Verdict.CONTAINER)


def _uncovers(entry: IndexEntry, history: Sequence[IndexEntry], compacting: Collection[SegmentName]) -> bool:
    """Whether a record that `entry` has outdone would be left without it. Cycles take their segments ascending."""
    return any(other.sequence != entry.sequence and (other.segment not in compacting or other.segment > entry.segment)
               for other in history if other.sequence < entry.sequence or entry.kind == _DELETE)


def _judge_alone(entry: IndexEntry, rules: Rules) -> Verdict:
    if rules.is_container_gone(entry):
        return Verdict.CONTAINER
    if entry.kind == _TTL_UPDATE:
        return Verdict.ORPHANED
    if entry.kind == _DELETE:
        return Verdict.PURGED if _is_removable(entry, rules) else Verdict.KEEP
    expired = entry.is_expired(rules.now_ms) and not entry.flags & _TTL_UPDATED
    return Verdict.EXPIRED if expired else Verdict.KEEP


def _is_removable(tombstone: IndexEntry, rules: Rules) -> bool:
    """For a tombstone whose PUT is gone."""
    return (rules.purge_tombstones and not rules.had_put(tombstone)
            and (tombstone.is_expired(rules.now_ms) or rules.seen_by_all_peers(tombstone)))


def _without_duplicates(history: Sequence[IndexEntry], order: Sequence[int]) -> list[int]:
    """One place a sequence, that of the first segment. What the copies say has to be the same."""
    kept: list[int] = []
    for place in order:
        entry = history[place]
        if kept and history[kept[-1]].sequence == entry.sequence:
            first = history[kept[-1]]
            if _content(first) != _content(entry):
                raise _duplicate(first, entry, "no two different records of one sequence")
        else:
            kept.append(place)
    return kept


def _content(entry: IndexEntry) -> tuple[int, int, int, int]:
    # A hard delete may have reached one copy and not yet the other: flags are left out.
    return entry.kind, entry.life_version, entry.op_time_ms, entry.size


def _duplicate(first: IndexEntry, second: IndexEntry, expected: str) -> CorruptData:
    return CorruptData(path=second.segment.log_file, offset=second.offset, expected=expected,
                       found=f"record {second.sequence} of {second.id!r} beside {first.sequence} at {first.position}")


@attrs.frozen
class _Blob:
    """The newest state of a blob."""

    newest: IndexEntry | None
    put: IndexEntry | None
    is_permanent: bool

    @classmethod
    def of(cls, history: Sequence[IndexEntry]) -> _Blob:
        """Of its distinct records, ascending by sequence."""
        newest = put = None
        is_permanent = False
        for entry in history:
            if entry.kind == _TTL_UPDATE:
                is_permanent = True
                continue
            newest = entry
            if entry.kind == _PUT:
                if put is not None:
                    raise _duplicate(put, entry, "one PUT of a blob")
                put = entry
        if newest is not None and newest.flags & _TTL_UPDATED:
            is_permanent = True
        return cls(newest, put, is_permanent)

    def is_covering(self, entry: IndexEntry) -> bool:
        """Whether older records mean something else without it."""
        return self.newest is not None and (entry is self.newest or entry.kind == _TTL_UPDATE)

    def judge(self, entry: IndexEntry, rules: Rules, compacting: Collection[SegmentName]) -> Verdict:
        newest = self.newest
        if newest is None:
            return Verdict.ORPHANED
        expired = not self.is_permanent and newest.is_expired(rules.now_ms)
        deleted = newest.kind == _DELETE and rules.in_effect(newest)
        if entry.kind == _PUT:
            return Verdict.DELETED if deleted else Verdict.EXPIRED if expired else Verdict.KEEP
        if entry.kind == _TTL_UPDATE:
            put_stays = self.put is not None and self.put.segment not in compacting
            return Verdict.KEEP if not deleted or put_stays else Verdict.ORPHANED
        if entry is not newest:
            return Verdict.SUPERSEDED
        if entry.kind == _DELETE:
            removable = self.put is None and _is_removable(entry, rules)
            return Verdict.PURGED if removable else Verdict.KEEP
        return Verdict.EXPIRED if expired else Verdict.KEEP
