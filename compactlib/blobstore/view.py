# SPDX-License-Identifier: Apache-2.0
"""The contract between a store and its policy of compaction, on one page.

A policy is a pure function: `choose(view, now) -> BlobChoice`. The view is an immutable picture of the store: its fill,
and for each segment the bytes that a compaction would copy. The choice names the segments to take and the reason. An
empty choice names the shut gate, its value and its setting. `plan.plan_for` computes cost and benefit, by the same
rules for every policy.

A choice may name any of the view's eligible segments, neighbours or not: the state of a blob does not depend on the
place of its records. A policy keeps no state between plans.

`check_policy` with `blob_views()` (`compactlib.testing`) tries a policy on many stores. The library's policies are in
`compactlib.blobstore.policies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import attrs

from compactlib._arguments import is_fraction, is_one_of, is_seconds, is_whole
from compactlib.blobstore.names import SegmentName
from compactlib.contract import Policy
from compactlib.errors import InvalidInput
from compactlib.report import Printed


@attrs.frozen
class Dying:
    """Valid bytes of a segment that expire at a known time, if nothing more is written about their blobs.

    Attributes:
        at: the last time at which they are valid, seconds since the epoch.
        bytes: their number.
    """

    at: float
    bytes: int


PlanKind: TypeAlias = Literal["normal", "full"]
"""The schedule that a plan belongs to."""


@attrs.frozen(kw_only=True)
class SegmentView:
    """One log segment as a policy sees it.

    Attributes:
        name: the segment's name.
        used_bytes: from the end of its header to the end of its last record.
        valid_bytes: bytes of the records that a compaction would copy, a part of `used_bytes`.
        eligible: whether a compaction may take it; the active segment and segments of the journal are not eligible.
        last_modified: time of the newest operation in it, seconds since the epoch.
        dying: valid bytes that expire within the forecast, ascending by time.
        disk_bytes: size of its files, header and index files included; `None` if unknown.
        damage: the damage for which it is left out, and then it is not eligible; empty if there is no damage.
    """

    name: SegmentName
    used_bytes: int
    valid_bytes: int
    eligible: bool = True
    last_modified: float = 0.0
    dying: tuple[Dying, ...] = ()
    disk_bytes: int | None = None
    damage: str = ""

    @property
    def dead_bytes(self) -> int:
        """Bytes that a compaction would drop."""
        return self.used_bytes - self.valid_bytes


@attrs.frozen(kw_only=True, repr=False)
class BlobView(Printed):
    """A store as a policy sees it, at one moment.

    Attributes:
        store: the store's name, for messages.
        incarnation: the store's 16 bytes; a plan carries them, so that no other store accepts it.
        capacity_bytes: capacity of the whole log.
        segment_bytes, header_bytes: capacity of one segment, its header included, and the size of the header.
        max_blob_bytes: the largest record to expect, and so the most that an output leaves unused at its end; less than
            a segment's room.
        used_bytes: used capacity: every segment before the active one counts whole, the active one up to its end.
        reference_time: deletes made strictly before it are in effect; seconds since the epoch.
        retention_seconds: time from a delete until it is in effect.
        segments: every segment, in log order, including segments without valid bytes; the last one is not eligible.
        last_full_at: when the last plan over the full range was carried out, or the store was created.
    """

    store: str
    incarnation: bytes = b""
    capacity_bytes: int
    segment_bytes: int
    header_bytes: int
    max_blob_bytes: int
    used_bytes: int
    reference_time: float
    retention_seconds: float
    segments: tuple[SegmentView, ...]
    last_full_at: float

    @property
    def eligible(self) -> tuple[SegmentView, ...]:
        """The segments that a choice may name, in log order."""
        return tuple(segment for segment in self.segments if segment.eligible)

    @property
    def fill_bytes(self) -> int:
        """Bytes of records that always fit into an output segment, whatever the sizes of the records."""
        return self.segment_bytes - self.header_bytes - self.max_blob_bytes

    @property
    def used_fraction(self) -> float:
        """The used part of the log's capacity, 0 to 1."""
        return self.used_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    def benefit(self, count: int, valid_bytes: int) -> int:
        """Return how many segments a compaction of `count` segments with these valid bytes frees at least.

        Negative if the outputs may outnumber the sources. Records above `max_blob_bytes` may need more segments still.
        """
        return count - -(-valid_bytes // self.fill_bytes)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary a segment, in log order."""
        return [{"store": self.store, "segment": str(each.name), "eligible": each.eligible,
                 "used_bytes": each.used_bytes, "valid_bytes": each.valid_bytes, "disk_bytes": each.disk_bytes,
                 "last_modified": each.last_modified} for each in self.segments]

    def _summary(self) -> str:
        valid = sum(segment.valid_bytes for segment in self.segments)
        return (f"{self.store}: {len(self.segments):,} segments, {len(self.eligible):,} of them eligible, "
                f"{self.used_fraction:.1%} of the log used, {valid:,} valid bytes")


def _names(given: Iterable[SegmentName | SegmentView]) -> tuple[SegmentName, ...]:
    return tuple(each.name if isinstance(each, SegmentView) else each for each in given)


@attrs.frozen
class BlobChoice:
    """The segments that a policy wants compacted, and the reason; or no segment, and the reason.

    Attributes:
        victims: names of segments of `view.eligible`, each once, in the order in which they are copied, so that
            survivors of adjacent victims share an output; empty for nothing. `SegmentView` values are accepted, too.
        why: one sentence with its numbers; of an empty choice: the shut gate, its value, and the setting to change.
        kind: the schedule that it belongs to; the store records when a `"full"` one was carried out.
    """

    victims: tuple[SegmentName, ...] = attrs.field(default=(), converter=_names)
    why: str = attrs.field(kw_only=True)
    kind: PlanKind = attrs.field(default="normal", validator=is_one_of(PlanKind), kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not self.why:
            raise InvalidInput("a choice gives no reason; say in one sentence why these segments, or why none")

    @property
    def is_empty(self) -> bool:
        """Whether no segment was chosen."""
        return not self.victims


BlobPolicy: TypeAlias = Policy[BlobView, BlobChoice]
"""Decides whether a store is compacted now, and which segments: a small frozen class, attrs or dataclass, with its
settings as public fields.

A policy that reads `SegmentView.dying` sets the class attribute `needs_forecast = True`; without it `dying` is empty.
"""


# ---------------------------------------------------------------------------------------------- helpers for policies

def shut_gate(view: BlobView, min_used_fraction: float = 0.0) -> str:
    """Return the `why` of an empty choice if no segment may be taken, whatever the segments hold; else `""`.

    `min_used_fraction` is the least used part of the log; an equal part suffices.
    """
    if view.used_bytes < min_used_fraction * view.capacity_bytes:
        return (f"{view.used_fraction:.1%} of the log is used, below min_used_fraction={min_used_fraction}; lower it, "
                f"or wait")
    if not any(segment.eligible for segment in view.segments):
        damaged = sum(bool(segment.damage) for segment in view.segments)
        also = f", {damaged} are damaged" if damaged else ""
        return (f"none of the {len(view.segments)} segments may be compacted yet: one is written to{also}, the journal "
                f"reaches {len(view.segments) - 1 - damaged}; wait, or lower the store's journal_max_entries, or seal "
                f"the one that is written to with close_active_segment()")
    return ""


def too_little(view: BlobView, min_reclaimed_segments: int) -> BlobChoice:
    """Return an empty choice: no segments free as many as the policy requires."""
    valid = sum(segment.valid_bytes for segment in view.eligible)
    kept = sum(not segment.eligible and not segment.damage for segment in view.segments) - 1
    ordered = emptiest_first(view.eligible)
    is_for_large_blobs = not fewest_that_free(view, ordered, min_reclaimed_segments) and fewest_that_free(
        attrs.evolve(view, max_blob_bytes=0), ordered, min_reclaimed_segments)
    later = (f"; a delete counts deleted_retention_seconds={view.retention_seconds:g} after it was made"
             if view.retention_seconds else "")
    advice = ", or ".join(filter(None, (
        f"lower the store's max_blob_bytes={view.max_blob_bytes}, which each output keeps free"
        if is_for_large_blobs else "",
        f"lower the store's journal_max_entries, for which {kept} more segments are kept" if kept > 0 else "",
        "lower min_reclaimed_segments" if min_reclaimed_segments > 1 else "",
        "compact with CompactAll(min_used_fraction=0.0), which frees bytes, if no segment" if valid < sum(
            segment.used_bytes for segment in view.eligible) else "",
        f"wait until more is dead{later}")))
    return BlobChoice(why=f"no choice among the {len(view.eligible)} eligible segments ({valid:,} valid bytes) is sure "
                          f"to free min_reclaimed_segments={min_reclaimed_segments}; {advice}")


def fewest_that_free(view: BlobView, ordered: Sequence[SegmentView], segments: int) -> Sequence[SegmentView]:
    """Return the shortest prefix of `ordered` that frees at least `segments`; empty if there is no such prefix.

    A segment too full to free any room is skipped. O(segments).
    """
    taken, valid = list[SegmentView](), 0
    for segment in ordered:
        if segment.valid_bytes < view.fill_bytes:
            taken.append(segment)
            valid += segment.valid_bytes
            if view.benefit(len(taken), valid) >= segments:
                return taken
    return ()


def emptiest_first(segments: Sequence[SegmentView]) -> list[SegmentView]:
    """Return the segments sorted by valid bytes; equals in log order."""
    # Two stable sorts: a key of two values would make a tuple for each segment.
    return sorted(sorted(segments, key=attrgetter("name")), key=attrgetter("valid_bytes"))


def fraction(default: float) -> Any:
    """Return the `attrs` field of a setting that is a fraction, 0 .. 1."""
    return attrs.field(default=default, validator=is_fraction)


def seconds(default: float) -> Any:
    """Return the `attrs` field of a setting in seconds, 0 or more."""
    return attrs.field(default=default, validator=is_seconds())


def whole(default: int, *, least: int = 0) -> Any:
    """Return the `attrs` field of a setting that is a count, `least` or more."""
    return attrs.field(default=default, validator=is_whole(least))
