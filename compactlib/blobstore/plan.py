# SPDX-License-Identifier: Apache-2.0
"""What a compaction is going to do, before it does it: a plan says its cost, its benefit and its reason.

Plans are made from a view, a policy's choice and a time alone, so one can be made, printed and thrown away at any time.

The number of outputs is an upper bound, and so is the room: a compaction takes smaller steps where there is less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isfinite
from typing import Any, ClassVar

import attrs

from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.index_file import index_file_bytes
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import OVERHEAD_BYTES
from compactlib.blobstore.view import BlobChoice, BlobPolicy, BlobView, PlanKind, SegmentView
from compactlib.errors import InvalidInput
from compactlib.report import PolicyRecord, Printed


@attrs.frozen
class PlannedSegment:
    """A segment in a plan.

    Attributes:
        name: its name.
        used_bytes: bytes of its records.
        valid_bytes: bytes of records that a compaction copies, as far as is known when the plan is made.
        why: why the plan leaves it; empty if it takes it.
    """

    name: SegmentName
    used_bytes: int
    valid_bytes: int
    why: str = ""

    @property
    def dead_bytes(self) -> int:
        """Bytes that are not copied."""
        return self.used_bytes - self.valid_bytes


@attrs.frozen(kw_only=True, repr=False)
class BlobPlan(Printed):
    """Which segments a compaction takes, at what cost, to what benefit, and why; an empty one says why nothing is done.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` gives its rows as data.

    Attributes:
        store: the store's name.
        incarnation: 16 bytes that are the store's own; empty if the view had none.
        victims: the segments it takes, in the order in which they are copied; neighbours or not.
        left: the others, in log order.
        reference_time: deletes made strictly before it are in effect; >= 0, seconds since the epoch.
        planned_at: when the plan was made.
        kind: which schedule it answers to; "full" takes everything that may be taken.
        policy: the name of the policy that made it.
        why: why, in one sentence with the numbers in it; of an empty one, which gate is shut and what to change. If
            segments are left out for damage, it ends in how many.
        benefit_segments: by how many segments the log gets shorter, at least, as far as is known, if no record is
            larger than the view's `max_blob_bytes` and the disk has room for two outputs; `CompactAll` may give 0 or
            less.
        bytes_to_copy: bytes to write, as on disk, headers, records and index files, at most; an output that another
            step goes on with is written once more.
        bytes_freed: by how much less is on disk afterwards, at least.
        bytes_needed: the room on disk that its smallest steps take before they give any back, at most. With more, steps
            are larger.
        bytes_available: the room there was when it was planned; `None` if unknown.
        expires_before: blobs that expire before it are given up, as if they had expired, to make room in a full cache;
            `None` for no others than those that have.

    Raises:
        InvalidInput: a victim that comes twice, no reason, or a reference time that is negative or no number.
    """

    store: str
    incarnation: bytes = b""
    victims: tuple[PlannedSegment, ...]
    left: tuple[PlannedSegment, ...] = ()
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
    is_exact: ClassVar[bool] = False  # what is copied and freed are bounds

    def __attrs_post_init__(self) -> None:
        for name, count in Counter(self.names).items():
            if count > 1:
                raise InvalidInput(f"a plan for store {self.store!r} names {name} {count} times; each comes once")
        if not isfinite(self.reference_time) or self.reference_time < 0:
            raise InvalidInput(f"a plan for store {self.store!r} has the reference time {self.reference_time}; it is "
                               f"a number of seconds since the epoch, at least 0")
        if not self.why:
            raise InvalidInput(f"a plan for store {self.store!r} gives no reason; say why, or why nothing is done")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.victims

    @property
    def names(self) -> tuple[SegmentName, ...]:
        """The victims' names, in the order in which they are copied."""
        return tuple(victim.name for victim in self.victims)

    @property
    def is_full(self) -> bool:
        """Whether the plan takes the full range."""
        return self.kind == "full"

    @property
    def valid_bytes(self) -> int:
        """Bytes of records to copy, as far as is known."""
        return sum(victim.valid_bytes for victim in self.victims)

    @property
    def dead_bytes(self) -> int:
        """Bytes of records that will be gone."""
        return sum(victim.dead_bytes for victim in self.victims)

    @property
    def ratio(self) -> float:
        """Valid bytes for each segment freed; infinite if none is freed for sure."""
        if self.benefit_segments < 1:
            return float("inf")
        return self.valid_bytes / self.benefit_segments

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a segment, in log order: what is copied, dropped or kept, and why."""
        rows = [*((victim, "copy" if victim.valid_bytes else "drop", self.why) for victim in self.victims),
                *((each, "keep", each.why) for each in self.left)]
        return [{"store": self.store, "segment": str(each.name), "action": action, "used_bytes": each.used_bytes,
                 "valid_bytes": each.valid_bytes, "dead_bytes": each.used_bytes - each.valid_bytes, "why": why}
                for each, action, why in sorted(rows, key=lambda row: row[0].name)]

    def _summary(self) -> str:
        if self.is_empty:
            return f"nothing to compact in {self.store} by {self.policy.name}: {self.why}"
        kind = "" if self.kind == "normal" else f"{self.kind} "
        sure = f"frees {self.benefit_segments} for sure" if self.benefit_segments > 0 else "frees none for sure"
        return (f"{kind}compaction of {_ranges(sorted(self.names))} of {self.store} by {self.policy.name}: writes at "
                f"most {self.bytes_to_copy:,} bytes, frees at least {self.bytes_freed:,}, {sure}: {self.why}")


def plan_for(view: BlobView, policy: BlobPolicy, now: float, *, bytes_available: int | None = None) -> BlobPlan:
    """What `policy` makes of `view` at `now` (seconds since the epoch). Pure; see `plan_for_choice`.

    What the policy raises comes through as it is.

    Raises:
        InvalidInput: it is no policy, or its choice is none; see `plan_for_choice`.
    """
    return plan_for_choice(view, policy.choose(view, now), policy, now, bytes_available=bytes_available)


def plan_for_choice(view: BlobView, choice: BlobChoice, policy: BlobPolicy, now: float, *,
                    bytes_available: int | None = None) -> BlobPlan:
    """The plan that carries out `choice`, cost and benefit computed by the rules of `BlobView`. O(segments).

    Args:
        view: the store.
        choice: what the policy chose from it.
        policy: the name of the policy that chose.
        now: when, seconds since the epoch.
        bytes_available: the room on the disk, if it was asked.

    Raises:
        InvalidInput: the choice names a segment twice, or one that is not eligible, or is no `BlobChoice`; the message
            names the policy.
    """
    if not isinstance(choice, BlobChoice):
        raise InvalidInput(f"policy {policy.name!r} answered {choice!r}; choose() answers a BlobChoice, an empty one "
                           f"that says why if nothing is worth it")
    wanted = set(choice.victims)
    there = {segment.name: segment for segment in view.segments if segment.eligible and segment.name in wanted}
    if len(there) != len(choice.victims):
        raise _bad_choice(choice, view, policy)
    victims = [there[name] for name in choice.victims]
    valid = sum(segment.valid_bytes for segment in victims)
    written = _most_written(view, victims, valid)
    return BlobPlan(
        store=view.store, incarnation=view.incarnation,
        victims=tuple(PlannedSegment(each.name, each.used_bytes, each.valid_bytes) for each in victims),
        left=tuple(PlannedSegment(each.name, each.used_bytes, each.valid_bytes, _why_left(each, view))
                   for each in view.segments if each.name not in wanted),
        reference_time=max(view.reference_time, 0.0), planned_at=now, policy=PolicyRecord.of(policy),
        why=_never(view) if choice.is_empty and len(view.segments) == 1 and view.segment_bytes >= view.capacity_bytes
        else choice.why + _damage_note(view), kind=choice.kind,
        benefit_segments=view.benefit(len(victims), valid), bytes_to_copy=written,
        bytes_freed=sum(each.used_bytes + view.header_bytes if each.disk_bytes is None else each.disk_bytes
                        for each in victims) - written,
        bytes_needed=min(written, view.segment_bytes + _most_index(view.segment_bytes, 1)),
        bytes_available=bytes_available)


def _bad_choice(choice: BlobChoice, view: BlobView, policy: BlobPolicy) -> InvalidInput:
    segments = {segment.name: segment for segment in view.segments}
    seen: set[SegmentName] = set()
    what = ""
    for name in choice.victims:
        if name in seen:
            what = f"names segment {name} twice"
        elif name not in segments:
            what = f"names segment {name}, which store {view.store!r} does not have"
        elif not segments[name].eligible:
            what = f"names segment {name}, which may not be compacted yet: {_why_left(segments[name], view)}"
        if what:
            break
        seen.add(name)
    return InvalidInput(f"policy {policy.name!r} made a bad choice: it {what}; a choice takes segments of "
                        f"view.eligible, each once (check_policy finds such cases)")


def _why_left(segment: SegmentView, view: BlobView) -> str:
    if segment is view.segments[-1]:
        return "the newest one, still written to"
    return "not chosen" if segment.eligible else segment.damage or "the journal reaches it"


def _never(view: BlobView) -> str:
    """Why a log of one segment is left alone."""
    return (f"the log has one segment, capacity_bytes={view.capacity_bytes} and segment_bytes={view.segment_bytes}, "
            f"and what is written to is never compacted; copy the store into one of smaller segments with "
            f"copy_store()")


def _damage_note(view: BlobView) -> str:
    """What a plan's reason ends in if segments are left out for damage."""
    damaged = sum(bool(segment.damage) for segment in view.segments)
    if not damaged:
        return ""
    return (f"; {damaged} {'segment is' if damaged == 1 else 'segments are'} left out for damage: mend or replace "
            f"{'its file' if damaged == 1 else 'their files'}, or delete what verify() names there")


def _most_written(view: BlobView, victims: list[SegmentView], valid: int) -> int:
    """Return what is written at most: records, headers, and index files of as many records as there may be."""
    if not valid:
        return 0
    room = view.segment_bytes - view.header_bytes
    # Two outputs, one behind the other, hold more than fits into one; and no victim needs more than one.
    outputs = min(2 * valid // room + 1, sum(victim.valid_bytes > 0 for victim in victims))
    index = sum(_most_index(victim.valid_bytes, 0) if victim.disk_bytes is None else
                max(victim.disk_bytes - victim.used_bytes - view.header_bytes, 0)
                for victim in victims if victim.valid_bytes)
    return outputs * view.header_bytes + valid + index + _most_index(0, outputs)


def _most_index(record_bytes: int, files: int) -> int:
    """Return what the index of so many bytes of records takes at most, in so many files."""
    return files * index_file_bytes(0, 0) + index_file_bytes(record_bytes // OVERHEAD_BYTES, 0) - index_file_bytes(0, 0)


def forecast(plan: BlobPlan, view: BlobView) -> BlobView:
    """The view after `plan` was carried out on `view`, if nothing is written, deleted or expired meanwhile.

    Outputs reuse the victims' first places, one generation on, and are filled as the benefit assumes.

    Raises:
        PlanDoesNotFit: it names a segment that the store does not have, or that may not be compacted; make a new plan.
    """
    segments = {segment.name: segment for segment in view.segments}
    for name in plan.names:
        if name not in segments:
            raise PlanDoesNotFit(f"the plan names segment {name}, which store {view.store!r} does not have; plan again")
        if not segments[name].eligible:
            raise PlanDoesNotFit(f"the plan names segment {name} of store {view.store!r}, which may not be compacted "
                                 f"yet: {_why_left(segments[name], view)}; plan again later")

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
        # More is valid than is sure to fit into as many segments: the last output takes what is left.
        outputs[-1] = attrs.evolve(outputs[-1], used_bytes=outputs[-1].used_bytes + left,
                                   valid_bytes=outputs[-1].valid_bytes + left)
    after = sorted([*segments.values(), *outputs], key=lambda segment: segment.name)
    freed = (len(victims) - len(outputs)) * view.segment_bytes
    return attrs.evolve(view, segments=tuple(after), used_bytes=max(view.used_bytes - freed, 0),
                        history=view.history.after(plan.kind, plan.planned_at))


def _ranges(names: Iterable[SegmentName]) -> str:
    """`0_0 .. 3_1, 7_0`: neighbouring positions together; of many ranges only the first few."""
    runs: list[list[SegmentName]] = []
    for name in names:
        if runs and name.position == runs[-1][-1].position + 1:
            runs[-1][1:] = [name]
        else:
            runs.append([name])
    told = [" .. ".join(map(str, run)) for run in runs[:5]]
    return ", ".join(told) + (f" and {len(runs) - 5:,} ranges more" if len(runs) > 5 else "")
