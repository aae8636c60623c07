"""The contract between a store and whoever chooses what its compaction takes, on one page.

A policy is a pure function: `plan(view, now) -> CompactionPlan | None`. The view is an immutable picture of the store:
how full it is, and for each segment how much of it a compaction would have to copy. The plan names the segments to
take, what that costs, what it brings, and why these. `None` means that nothing is worth it now.

A plan may name any of the view's eligible segments, neighbours or not: what is true of a blob does not follow from
where its records lie. What a policy remembers from one plan to the next is in `view.history`, which changes
only when a plan has been carried out.

`compactlib.testing.blob_strategies.check_blob_policy` tries a policy on many stores and says where it breaks a rule.
Those that come with the library are in `compactlib.blobstore.policies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable
from zlib import crc32 as _hash

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan_history import PlanHistory
from compactlib.errors import InvalidInput

if TYPE_CHECKING:
    from compactlib.blobstore.plan import CompactionPlan

Setting: TypeAlias = int | float | str | None
"""The value of one setting of a policy; a plan records them all."""


@attrs.frozen
class Dying:
    """Valid bytes of a segment that need not be copied any more after a time, if nothing is written meanwhile.

    Attributes:
        at: until when they are valid, seconds since the epoch; strictly after it they are not.
        bytes: how many.
    """

    at: float
    bytes: int


@attrs.frozen(kw_only=True)
class SegmentView:
    """One log segment as a policy sees it.

    Attributes:
        name: its name.
        used_bytes: from the end of its header to the end of its last record.
        valid_bytes: bytes of the records that a compaction would copy.
        eligible: whether a compaction may take it: not the newest one, and without an entry in the journal.
        last_modified: time of the newest operation in it, seconds since the epoch.
        dying: what of its valid bytes will die by itself, in order of time; as far ahead as the statistics look.

    Raises:
        InvalidInput: valid bytes are not a part of the used ones, or `dying` does not ascend or is more than is valid.
    """

    name: SegmentName
    used_bytes: int
    valid_bytes: int
    eligible: bool = True
    last_modified: float = 0.0
    dying: tuple[Dying, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.valid_bytes <= self.used_bytes:
            raise InvalidInput(f"segment {self.name} claims {self.valid_bytes} valid of {self.used_bytes} used bytes; "
                               f"valid is a part of the whole")
        if self.dying and (any(first.at > second.at for first, second in pairwise(self.dying))
                           or sum(each.bytes for each in self.dying) > self.valid_bytes):
            raise InvalidInput(f"segment {self.name}: what is dying must ascend in time and is at most the "
                               f"{self.valid_bytes} bytes that are valid")

    def valid_bytes_at(self, when: float) -> int:
        """How many of the valid bytes will still be valid at `when` (seconds), if nothing is written meanwhile."""
        return self.valid_bytes - sum(each.bytes for each in self.dying if each.at < when)


@attrs.frozen(kw_only=True)
class StoreView:
    """A store as a policy sees it, at one moment.

    Attributes:
        store: the store's name, for messages, and to spread schedules.
        capacity_bytes: capacity of the whole log.
        segment_bytes: capacity of one segment, its header included.
        header_bytes: size of a segment's header.
        max_blob_bytes: the largest record to reckon with: what an output may have to leave unused at its end.
        used_bytes: used capacity: whole segments before the last one, and the last one up to its end (notes 1.2).
        reference_time: what the valid bytes were counted for: deletes made strictly before it are in effect;
            seconds since the epoch.
        retention_seconds: how long a delete is not yet in effect.
        segments: every segment, in log order, those without valid bytes included.
        history: the plans carried out so far.

    Raises:
        InvalidInput: the segments do not ascend, a number is negative or not finite, the newest segment is
            eligible, or nothing is left of a segment beside header and largest blob.
    """

    store: str
    capacity_bytes: int
    segment_bytes: int
    header_bytes: int
    max_blob_bytes: int
    used_bytes: int
    reference_time: float
    retention_seconds: float
    segments: tuple[SegmentView, ...]
    history: PlanHistory

    def __attrs_post_init__(self) -> None:
        for name in ("capacity_bytes", "segment_bytes", "header_bytes", "max_blob_bytes", "used_bytes",
                     "retention_seconds", "reference_time"):
            value = getattr(self, name)
            if not isfinite(value) or (value < 0 and name != "reference_time"):
                raise InvalidInput(f"{name} of store {self.store!r} is {value}; it cannot be")
        for older, newer in pairwise(self.segments):
            if not older.name < newer.name:
                raise InvalidInput(f"store {self.store!r}: segment {newer.name} follows {older.name}; names ascend")
        if self.segments and self.segments[-1].eligible:
            raise InvalidInput(f"store {self.store!r}: segment {self.segments[-1].name} is the newest one, still "
                               f"written to; it cannot be eligible")
        if self.fill_bytes < 1:
            raise InvalidInput(f"store {self.store!r}: a segment of {self.segment_bytes} bytes has no room beside "
                               f"{self.header_bytes} of header and a blob of {self.max_blob_bytes}")

    @property
    def eligible(self) -> tuple[SegmentView, ...]:
        """The segments that a plan may name, in log order."""
        return tuple(segment for segment in self.segments if segment.eligible)

    @property
    def eligible_runs(self) -> tuple[tuple[SegmentView, ...], ...]:
        """The eligible segments, cut where one that is not eligible lies between them."""
        runs: list[list[SegmentView]] = [[]]
        for segment in self.segments:
            if segment.eligible:
                runs[-1].append(segment)
            elif runs[-1]:
                runs.append([])
        return tuple(tuple(run) for run in runs if run)

    @property
    def fill_bytes(self) -> int:
        """Bytes of records that an output segment is sure to take before one may not fit."""
        return self.segment_bytes - self.header_bytes - self.max_blob_bytes

    @property
    def used_fraction(self) -> float:
        """How full the log is, 0 to 1."""
        return self.used_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    def benefit(self, count: int, cost_bytes: int) -> int:
        """By how many segments the log gets shorter, at least, if `count` of them with so many valid bytes are taken.

        Negative if they may need more segments than they are now.
        """
        return count - -(-cost_bytes // self.fill_bytes)

    def spread(self, seconds: float) -> float:
        """This store's own part of `seconds`: always the same, so that stores do not all come due at once."""
        return seconds * _hash(self.store.encode("utf-8", "surrogatepass")) / 0xFFFFFFFF


class CompactionPolicy(Protocol):
    """Decides whether a store is compacted now, and which segments; implement it as a small frozen attrs class."""

    @property
    def name(self) -> str:
        """A short name for plans and reports."""

    def config(self) -> dict[str, Setting]:
        """The settings that decide the choice, so that it can be recorded and repeated."""

    def plan(self, view: StoreView, now: float) -> CompactionPlan | None:
        """What to compact now, or `None` if nothing is worth it.

        Pure: equal arguments give equal plans. A plan names one or more of `view.eligible`; `plan_for` makes it.

        Args:
            view: the store.
            now: seconds since the epoch.
        """


@runtime_checkable
class Explains(Protocol):
    """What a policy may offer besides: why it gave no plan."""

    def why_not(self, view: StoreView, now: float) -> str:
        """The reason, in one sentence with the numbers in it; asked only after `plan` gave `None`."""


def why_no_plan(policy: CompactionPolicy, view: StoreView, now: float) -> str:
    """Why `policy` gave no plan for `view`, as far as it tells."""
    if isinstance(policy, Explains):
        return policy.why_not(view, now)
    return f"policy {policy.name!r} sees nothing worth compacting"


@attrs.frozen(kw_only=True)
class GatedPolicy(ABC):
    """A base for policies that leave a store alone until it is full enough and something is eligible.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.

    Raises:
        InvalidInput: the fraction is out of its range.
    """

    min_used_fraction: float = 0.5

    def __attrs_post_init__(self) -> None:
        check_fraction("min_used_fraction", self.min_used_fraction)

    @property
    @abstractmethod
    def name(self) -> str:
        """See `CompactionPolicy.name`."""

    def config(self) -> dict[str, Setting]:
        """See `CompactionPolicy.config`."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}

    @abstractmethod
    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """`plan`, for a store that is full enough and has something eligible."""

    def plan(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `CompactionPolicy.plan`."""
        return self.choose(view, now) if self.refusal(view) is None else None

    def refusal(self, view: StoreView) -> str | None:
        """Why the store is left alone whatever its segments hold, or `None`."""
        if view.used_bytes < self.min_used_fraction * view.capacity_bytes:
            return f"{view.used_fraction:.1%} of the log is used, below {self.min_used_fraction:.1%}"
        if not any(segment.eligible for segment in view.segments):
            return f"none of the {len(view.segments)} segments may be compacted yet"
        return None

    def why_not(self, view: StoreView, now: float) -> str:
        """See `Explains.why_not`."""
        return self.refusal(view) or self.nothing_found(view, now)

    def nothing_found(self, view: StoreView, now: float) -> str:
        """Why `choose` found nothing."""
        return f"nothing among the {len(view.eligible)} eligible segments is worth it"


@attrs.frozen(kw_only=True)
class ReclaimingPolicy(GatedPolicy):
    """A base for policies that ask for a number of segments to be freed.

    Attributes:
        min_reclaimed_segments: by how many segments a plan has to shorten the log, >= 1.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_reclaimed_segments: int = 1

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.min_reclaimed_segments < 1:
            raise InvalidInput(f"min_reclaimed_segments is {self.min_reclaimed_segments}; a plan that frees no segment "
                               f"is never worth it, so it has to be at least 1")

    def nothing_found(self, view: StoreView, now: float) -> str:
        """See `GatedPolicy.nothing_found`."""
        valid = sum(segment.valid_bytes for segment in view.eligible)
        return (f"no choice among the {len(view.eligible)} eligible segments ({valid:,} valid bytes) is sure to free "
                f"{self.min_reclaimed_segments}")


def check_fraction(name: str, value: float) -> None:
    """Return if `value` is a part of a whole.

    Raises:
        InvalidInput: it is not between 0 and 1.
    """
    if not 0 <= value <= 1:
        raise InvalidInput(f"{name} is {value}; it must be between 0 and 1")


def check_seconds(name: str, value: float) -> None:
    """Return if `value` is a length of time.

    Raises:
        InvalidInput: it is negative or not finite.
    """
    if not (isfinite(value) and value >= 0):
        raise InvalidInput(f"{name} is {value}; it must be a number of seconds, at least 0")


def fewest_that_free(view: StoreView, ordered: Sequence[SegmentView], segments: int) -> Sequence[SegmentView] | None:
    """The first so many of `ordered` that are sure to free `segments` together, or `None` if not even all of them are.

    What frees nothing by being there is passed over: a segment too full to make room for itself. O(segments).
    """
    cost = 0
    taken: list[SegmentView] = []
    for segment in ordered:
        if segment.valid_bytes >= view.fill_bytes:
            continue
        taken.append(segment)
        cost += segment.valid_bytes
        if view.benefit(len(taken), cost) >= segments:
            return taken
    return None
