# SPDX-License-Identifier: Apache-2.0
"""The plan of a compaction: the segments to take, the cost, the benefit and the reason.

A plan is a pure function of a view, a policy's choice and a time: a dry run costs nothing and changes nothing.

The number of outputs is an upper bound, and so is the room: a compaction takes smaller steps on a full disk.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from compactlib.blobstore.index import index_file_bytes
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import OVERHEAD_BYTES
from compactlib.blobstore.view import BlobChoice, BlobPolicy, BlobView, PlanKind, SegmentView
from compactlib.errors import InvalidInput
from compactlib.report import PolicyRecord, Printed


@attrs.frozen(kw_only=True, repr=False)
class BlobPlan(Printed):
    """The segments that a compaction takes, the cost, the benefit and the reason; an empty plan says why it is empty.

    Attributes:
        store: the store's name.
        incarnation: the store's 16 bytes; empty if the view had none.
        victims: the segments to take, in the order in which they are copied; neighbours or not.
        left: the other segments, in log order.
        reference_time: deletes made strictly before it are in effect; >= 0, seconds since the epoch.
        planned_at: when the plan was made, seconds since the epoch.
        kind: the schedule that it belongs to; "full" takes every eligible segment.
        policy: the policy that made it, and its settings.
        why: the reason, in one sentence with its numbers; of an empty plan: the shut gate and the setting to change. It
            ends in the number of segments left out for damage, if there are any.
        benefit_segments: how many segments are freed at least, if no record is larger than the view's `max_blob_bytes`
            and the disk has room for two outputs; 0 or less is possible with `CompactAll`.
        bytes_to_copy: bytes to write at most: headers, records and index files; an output that is a source of the next
            step is counted once.
        bytes_freed: bytes freed on disk at least, outputs subtracted.
        bytes_needed: free room that the smallest steps need at most before they remove sources. With more room, steps
            are larger.
        bytes_available: the free room on disk when it was planned; `None` if unknown.
        expires_before: to make room in a full cache, blobs that expire before this time count as expired; `None` if
            only blobs that have expired do.
    """

    store: str
    incarnation: bytes = b""
    victims: tuple[SegmentView, ...]
    left: tuple[SegmentView, ...] = ()
    reference_time: float
    planned_at: float
    policy: PolicyRecord
    why: str
    kind: PlanKind = "normal"
    benefit_segments: int = 0
    bytes_to_copy: int = 0
    bytes_freed: int = 0
    bytes_needed: int = 0
    bytes_available: int | None = None
    expires_before: float | None = None

    def __attrs_post_init__(self) -> None:
        for name, count in Counter(self.names).items():
            if count > 1:
                raise InvalidInput(f"a plan for store {self.store!r} names {name} {count} times; name each victim once")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.victims

    @property
    def names(self) -> tuple[SegmentName, ...]:
        """The victims' names, in the order in which they are copied."""
        return tuple(victim.name for victim in self.victims)

    @property
    def valid_bytes(self) -> int:
        """Bytes of records to copy, counted when the plan was made."""
        return sum(victim.valid_bytes for victim in self.victims)

    @property
    def dead_bytes(self) -> int:
        """Bytes of records that will be dropped."""
        return sum(victim.dead_bytes for victim in self.victims)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary a segment, in log order: the action (copy, drop or keep), its bytes and the reason."""
        newest = max((each.name for each in self.left), default=None)
        rows = [*((victim, "copy" if victim.valid_bytes else "drop", self.why) for victim in self.victims),
                *((each, "keep", _why_left(each, newest)) for each in self.left)]
        return [{"store": self.store, "segment": str(each.name), "action": action, "used_bytes": each.used_bytes,
                 "valid_bytes": each.valid_bytes, "dead_bytes": each.dead_bytes, "why": why}
                for each, action, why in sorted(rows, key=lambda row: row[0].name)]

    def _summary(self) -> str:
        if self.is_empty:
            return f"nothing to compact in {self.store} by {self.policy.name}: {self.why}"
        kind = "" if self.kind == "normal" else f"{self.kind} "
        sure = f"frees {self.benefit_segments} for sure" if self.benefit_segments > 0 else "frees none for sure"
        return (f"{kind}compaction of {len(self.names):,} segments of {self.store}, {min(self.names)} to "
                f"{max(self.names)}, by {self.policy.name}: writes at most {self.bytes_to_copy:,} bytes, frees at "
                f"least {self.bytes_freed:,}, {sure}: {self.why}")


def plan_for(view: BlobView, policy: BlobPolicy, now: float, *, bytes_available: int | None = None) -> BlobPlan:
    """Return the plan that `policy` chooses of `view` at `now` (seconds since the epoch). Pure; see `plan_for_choice`.
    """
    return plan_for_choice(view, policy.choose(view, now), policy, now, bytes_available=bytes_available)


def plan_for_choice(view: BlobView, choice: BlobChoice, policy: BlobPolicy, now: float, *,
                    bytes_available: int | None = None) -> BlobPlan:
    """Return the plan of a choice, with cost and benefit by the rules of `BlobView`. O(segments).

    The plan records the name and the settings of `policy`, and `bytes_available`, the free room on the disk if known.

    Raises:
        InvalidInput: the choice names a segment twice or one that is not eligible; the message names the policy.
    """
    if not isinstance(choice, BlobChoice):
        raise InvalidInput(f"policy {policy.name!r} answered {choice!r}; choose() answers a BlobChoice, an empty one "
                           f"that says why if nothing is worth it")
    segments = {segment.name: segment for segment in view.segments}
    victims: list[SegmentView] = []
    for name in choice.victims:
        found = segments.pop(name, None)
        if found is None or not found.eligible:
            why = " twice" if name in choice.victims[:len(victims)] else ", which the store does not have" \
                if found is None else f", which may not be compacted yet: {_why_left(found, view.segments[-1].name)}"
            raise InvalidInput(f"policy {policy.name!r} made a bad choice of store {view.store!r}: it names segment "
                               f"{name}{why}; a choice takes segments of view.eligible, each once (check_policy finds "
                               f"such cases)")
        victims.append(found)
    valid = sum(segment.valid_bytes for segment in victims)
    written = _most_written(view, victims, valid)
    damaged = sum(bool(segment.damage) for segment in view.segments)
    why = choice.why
    if choice.is_empty and len(view.segments) == 1 and view.segment_bytes >= view.capacity_bytes:
        why = (f"the log has one segment, capacity_bytes={view.capacity_bytes} and segment_bytes={view.segment_bytes}, "
               f"and the active segment is never compacted; copy the store into one of smaller segments with "
               f"copy_store()")
    elif damaged:
        why += (f"; {damaged} of the segments left out for damage: restore their files, or delete what verify() names "
                f"there")
    return BlobPlan(
        store=view.store, incarnation=view.incarnation, victims=tuple(victims), left=tuple(segments.values()),
        reference_time=max(view.reference_time, 0.0), planned_at=now, policy=PolicyRecord.of(policy), why=why,
        kind=choice.kind, benefit_segments=view.benefit(len(victims), valid), bytes_to_copy=written,
        bytes_freed=sum(_on_disk(each, view) for each in victims) - written,
        bytes_needed=min(written, view.segment_bytes + index_file_bytes(view.segment_bytes // OVERHEAD_BYTES, 0)),
        bytes_available=bytes_available)


def _why_left(segment: SegmentView, newest: SegmentName | None) -> str:
    if segment.name == newest:
        return "the newest one, still written to"
    return "not chosen" if segment.eligible else segment.damage or "the journal reaches it"


def _on_disk(segment: SegmentView, view: BlobView) -> int:
    return segment.used_bytes + view.header_bytes if segment.disk_bytes is None else segment.disk_bytes


def _most_written(view: BlobView, victims: list[SegmentView], valid: int) -> int:
    """Return the most bytes that a compaction writes: headers, records, and an index of each."""
    copied = [victim for victim in victims if victim.valid_bytes]
    # Two consecutive outputs hold more than fits into one; and no victim needs more than one output.
    outputs = min(2 * valid // (view.segment_bytes - view.header_bytes) + 1, len(copied))
    index = sum(max(_on_disk(each, view) - each.used_bytes - view.header_bytes, 0) for each in copied)
    return outputs * (view.header_bytes + index_file_bytes(0, 0)) + valid + index


def forecast(plan: BlobPlan, view: BlobView) -> BlobView:
    """Return the view after `plan`, a plan of it, was carried out, if nothing is written, deleted or expired meanwhile.

    Outputs take the victims' first positions, in the next generation, and are filled as the benefit assumes.
    """
    segments = {segment.name: segment for segment in view.segments}
    if plan.is_empty:
        return view
    victims = [segments.pop(name) for name in plan.names]
    left = plan.valid_bytes
    generation = max(name.generation for name in plan.names) + 1
    outputs: list[SegmentView] = []
    for victim in victims:
        if not left:
            break
        size = min(left, view.fill_bytes)
        left -= size
        outputs.append(SegmentView(name=SegmentName(victim.name.position, generation), used_bytes=size,
                                   valid_bytes=size, last_modified=max(each.last_modified for each in victims)))
    if left:
        # The benefit is not certain: the last output takes the bytes above `fill_bytes` of all outputs.
        outputs[-1] = attrs.evolve(outputs[-1], used_bytes=outputs[-1].used_bytes + left,
                                   valid_bytes=outputs[-1].valid_bytes + left)
    after = sorted([*segments.values(), *outputs], key=lambda segment: segment.name)
    freed = (len(victims) - len(outputs)) * view.segment_bytes
    return attrs.evolve(view, segments=tuple(after), used_bytes=max(view.used_bytes - freed, 0),
                        last_full_at=plan.planned_at if plan.kind == "full" else view.last_full_at)
