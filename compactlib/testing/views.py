# SPDX-License-Identifier: Apache-2.0
"""Views of the library's stores for `check_policy`: Hypothesis draws them, and a judge adds the rules of each store.

`log_views().examples` is the strategy alone. Each strategy shrinks to the smallest view: no segments, no jobs, zero
counts. A judge checks that a choice can be carried out, and that repeated compactions end: when a policy plans on the
forecast of the plan before, each plan has to leave a smaller store, until a plan is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import attrs

from compactlib.blobstore import BlobChoice, BlobPolicy, BlobView
from compactlib.blobstore.policy import Dying, SegmentName, SegmentView, forecast, plan_for_choice
from compactlib.errors import InvalidInput, MissingDependency
from compactlib.raftlog import LogPolicy, LogView, SegmentLimits
from compactlib.raftlog.policy import (
    SegmentRef,
    SegmentStats,
    chosen_groups,
    is_worthwhile,
    plan_for,
    stored_dead_bytes,
)
from compactlib.scheduler import AssignmentPolicy, AssignmentView, JobChoice
from compactlib.scheduler.policy import LevelView, TenantLine, WaitingJob
from compactlib.staging import StagingChoice, StagingView
from compactlib.staging.policy import BranchPressure, BranchRecord, SensePolicy, StagingToken
from compactlib.testing.policies import Views

try:
    from hypothesis import note, strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="drawing views for a policy") from None

ViewT = TypeVar("ViewT")

NOW = 1_700_000_000.0
"""The time of every view, in seconds since the epoch."""
_DAY = 86_400.0


# ------------------------------------------------------------------------------------------------------- Raft logs

def log_views() -> Views[LogView]:
    """Draw Raft logs of any number of segments, with a snapshot at any index or without.

    The judge requires that each group keeps the rules of `LogPolicy`, that no group is a single wholly live segment,
    and that repeated compactions end.
    """
    return Views(_logs_of_candidates() | _logs(), _judge_log, (NOW,))


_PAYLOAD_BYTES = (0, 1, 26, 1024, 70_000)
_ALIKE = ((4, 4), (256, 1), (128, 64))
"""Entries and live entries of equal segments."""


def segment_limits() -> st.SearchStrategy[SegmentLimits]:
    """Draw small and large limits, also limits below the size of one segment."""
    return st.builds(SegmentLimits, max_entries=st.sampled_from([1, 16, 128, 4096]),
                     max_bytes=st.sampled_from([1, 5_000, 1_000_000, 64_000_000]))


@st.composite
def _segment(draw: st.DrawFn, ref: SegmentRef, min_live: int) -> SegmentStats:
    """Draw a dense, a sparse or a dead segment; with entries of one size, or of very uneven sizes."""
    entries = draw(st.integers(1, 256))
    most = min(entries, ref.last - ref.first + 1)
    live = draw(st.integers(min_live, most) | st.sampled_from([min_live, most]))
    each = draw(st.sampled_from(_PAYLOAD_BYTES))
    live_bytes, dead_bytes = live * each, (entries - live) * each
    if each and draw(st.booleans()):
        # Nearly all bytes are dead, or nearly all live.
        live_bytes, dead_bytes = (live, dead_bytes) if draw(st.booleans()) else (live_bytes, entries - live)
    return SegmentStats(ref=ref, entries=entries, data_bytes=live_bytes + dead_bytes, live_entries=live,
                        live_bytes=live_bytes)


@st.composite
def segment_sequences(draw: st.DrawFn, *, min_live: int = 0, max_segments: int = 24) -> tuple[SegmentStats, ...]:
    """Draw segments of one log, oldest to newest, with gaps between their numbers and between their ranges."""
    segments: list[SegmentStats] = []
    number = last = 0
    alike = draw(st.none() | st.sampled_from(_ALIKE))
    for _ in range(draw(st.integers(0, max_segments))):
        number += draw(st.sampled_from([1, 1, 1, 5]))
        first = last + draw(st.sampled_from([1, 1, 100]))
        if alike is None:
            last = first + draw(st.integers(0, 255))
            segments.append(draw(_segment(SegmentRef(number, first, last), min_live)))
        else:
            entries, live = alike
            last = first + entries - 1
            segments.append(SegmentStats(ref=SegmentRef(number, first, last), entries=entries, data_bytes=26 * entries,
                                         live_entries=live, live_bytes=26 * live))
    return tuple(segments)


@st.composite
def _logs(draw: st.DrawFn) -> LogView:
    segments = draw(segment_sequences())
    ends = [segment.ref.last for segment in segments]
    end = ends[-1] if ends else 0
    snapshot = draw(st.none() | st.just(end) | st.integers(0, end) | st.sampled_from([0, *ends]))
    return LogView(segments=segments, snapshot_index=snapshot, limits=draw(segment_limits()))


@st.composite
def _logs_of_candidates(draw: st.DrawFn) -> LogView:
    """Draw logs in which a policy may choose every segment but the newest, and each has live entries."""
    segments = draw(segment_sequences(min_live=1))
    number, last = (segments[-1].number, segments[-1].ref.last) if segments else (0, 0)
    newest = SegmentStats(ref=SegmentRef(number + 1, last + 1, last + 1), entries=1, data_bytes=1, live_entries=1,
                          live_bytes=1)
    return LogView(segments=(*segments, newest), snapshot_index=last, limits=draw(segment_limits()))


def _judge_log(policy: LogPolicy, view: LogView, now: float, choice: Any) -> None:
    note(f"{policy.name} chose {choice}")
    try:
        groups = chosen_groups(choice, view, policy=policy.name)
    except InvalidInput as error:
        raise AssertionError(str(error)) from error
    for members in groups:
        assert is_worthwhile(members), (
            f"{policy.name}: segment {members[0].number} is wholly live, and a rewrite of it alone changes nothing; "
            f"leave it out (is_worthwhile)")
    _require_end(policy.name, view, lambda log: plan_for(log, policy, now), lambda log, plan: plan.forecast(),
                   lambda log: (len(log.segments), sum(map(stored_dead_bytes, log.segments))))


def _require_end(name: str, view: ViewT, plan_for_view: Callable[[ViewT], Any],
                 forecast_of: Callable[[ViewT, Any], ViewT], size_of: Callable[[ViewT], tuple[int, int]]) -> None:
    """Require that each plan leaves a smaller store, until a plan is empty."""
    while not (plan := plan_for_view(view)).is_empty:
        after = forecast_of(view, plan)
        (segments, dead), before = size_of(after), size_of(view)
        assert (segments, dead) < before, (
            f"{name}: this plan makes no progress: it would leave {segments} segments with {dead:,} dead bytes, and "
            f"be made again. Take segments only if that frees a segment or dead bytes: {plan!r}")
        view = after


# ------------------------------------------------------------------------------------------------------ blob stores

def blob_views(*, comes_to_rest: bool = True) -> Views[BlobView]:
    """Draw blob stores, nearly empty to full, with segments at any positions, some of them not eligible.

    The judge requires that a choice takes eligible segments, each once, and that repeated compactions end.

    Args:
        comes_to_rest: `False` for a policy that also rewrites wholly valid segments, as `CompactAll` does without
            `skip_valid`.
    """
    def judge(policy: BlobPolicy, view: BlobView, now: float, choice: Any) -> None:
        _judge_blob_choice(policy, view, now, choice)
        if comes_to_rest:
            _require_end(policy.name, view,
                         lambda store: plan_for_choice(store, policy.choose(store, now), policy, now),
                         lambda store, plan: forecast(plan, store), _blob_size)

    return Views(_blob_stores(), judge, (NOW,))


_LIFE_SECONDS = (0.0, 60.0, 3_600.0, _DAY, 30 * _DAY)
_FADING = ((), (), ((0.0, 1),), ((3_600.0, 2),), ((3_600.0, 1),), ((60.0, 3), (_DAY, 2), (30 * _DAY, 1)))
"""Pairs of the seconds until records die, and n: one n-th of the valid bytes at that time."""


@st.composite
def _sealed_segment(draw: st.DrawFn, name: SegmentName, room_bytes: int, fill_bytes: int) -> SegmentView:
    """Draw a segment: empty, wholly valid, at the limit of an output's room, or in between."""
    used = draw(st.sampled_from([room_bytes, room_bytes, fill_bytes, 0]) | st.integers(0, room_bytes))
    edges = [0, 0, used, min(fill_bytes, used), min(fill_bytes // 2, used), min(fill_bytes // 2 + 1, used)]
    valid = draw(st.sampled_from(edges) | st.integers(0, used))
    dying: list[Dying] = []
    left = valid
    for seconds, part in draw(st.sampled_from(_FADING)):
        size = left // part
        left -= size
        dying.append(Dying(NOW + seconds, size))
    return SegmentView(name=name, used_bytes=used, valid_bytes=valid, eligible=draw(st.integers(0, 9)) < 9,
                       last_modified=NOW - draw(st.sampled_from(_LIFE_SECONDS)), dying=tuple(dying))


@st.composite
def _blob_stores(draw: st.DrawFn) -> BlobView:
    header, reserve = draw(st.sampled_from([(20, 80), (0, 0), (18, 400)]))
    segment_bytes = draw(st.sampled_from([1_000, 999, 1_048_576]))
    room = segment_bytes - header
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 3]), max_size=12))
    names = [SegmentName(position, draw(st.integers(0, 2))) for position in accumulate(steps)]
    segments = [draw(_sealed_segment(name, room, room - reserve)) for name in names]
    segments.append(SegmentView(name=SegmentName(sum(steps) + 1, 0), used_bytes=0, valid_bytes=0, eligible=False))
    capacity = segment_bytes * (len(segments) + draw(st.sampled_from([0, 0, 1, 20])))
    times = st.sampled_from([NOW, NOW - _DAY, NOW - 7 * _DAY, 0.0])
    return BlobView(store=draw(st.sampled_from(["disk1/7", "disk2/7", ""])), capacity_bytes=capacity,
                    segment_bytes=segment_bytes, header_bytes=header, max_blob_bytes=reserve,
                    used_bytes=segment_bytes * len(names), reference_time=NOW - 7 * _DAY,
                    retention_seconds=7 * _DAY, segments=tuple(segments), last_full_at=draw(times))


def _judge_blob_choice(policy: BlobPolicy, view: BlobView, now: float, choice: Any) -> None:
    note(f"{policy.name} chose {choice!r}")
    assert isinstance(choice, BlobChoice), (
        f"{policy.name}: choose() returned {choice!r}; return a BlobChoice, which may be empty with a reason")
    try:
        plan_for_choice(view, choice, policy, now)
    except InvalidInput as error:
        raise AssertionError(f"{policy.name}: {error}. Take segments of view.eligible only") from error


def _blob_size(view: BlobView) -> tuple[int, int]:
    return len(view.segments), sum(segment.used_bytes - segment.valid_bytes for segment in view.segments)


# ------------------------------------------------------------------------------------------------- staging branches

def branch_pressures() -> Views[BranchPressure]:
    """Draw counts of the sensor of a staging repository, from zero to very high.

    The judge requires that a policy does not compact at zero counts, compacts at the highest counts, and still compacts
    when a count is higher: the sensor may skip counts between two calls.
    """
    counts = st.integers(0, 20) | st.sampled_from([999, 1_000, 10_000]) | st.integers(0, _MOST_COUNTED)
    return Views(st.builds(BranchPressure, deletes=counts, sealed_tokens=st.integers(0, 20) | st.integers(0, 10_000),
                           tombstones_listed=counts), _judge_pressure, (NOW,))


_MOST_COUNTED = 1_000_000_000
_HIGHEST = BranchPressure(deletes=_MOST_COUNTED, sealed_tokens=10_000, tombstones_listed=_MOST_COUNTED)
_COUNTS = ("deletes", "sealed_tokens", "tombstones_listed")


def _judge_pressure(policy: SensePolicy, view: BranchPressure, now: float, choice: Any) -> None:
    assert isinstance(choice, StagingChoice), (
        f"{policy.name}: choose() returned {choice!r}; return a StagingChoice, which may be empty with a reason")
    assert policy.choose(BranchPressure(), now).is_empty, (
        f"{policy.name}: it compacts a branch with zero counts. Every new branch would be compacted at once, without "
        f"gain; return an empty choice below a threshold of at least 1")
    assert not policy.choose(_HIGHEST, now).is_empty, (
        f"{policy.name}: it does not compact at {_HIGHEST}: tombstones would accumulate without limit. Compact from "
        f"some count on")
    for count in _COUNTS:
        for more in (1, 2, 1_000):
            higher = attrs.evolve(view, **{count: getattr(view, count) + more})
            assert choice.is_empty or not policy.choose(higher, now).is_empty, (
                f"{policy.name}: it compacts at {view}, and not at {higher}. The sensor may skip counts between two "
                f"calls, and the branch would never be compacted; compare with >=")


def branch_views() -> Views[StagingView]:
    """Draw staging branches for the policy of a repository, with few or many staged entries."""
    tokens = st.integers(0, 10).map(lambda count: tuple(StagingToken(f"stg-{each:032x}") for each in range(count)))
    records = st.builds(BranchRecord, version=st.just(1), commit_id=st.none(), sealed_tokens=tokens,
                        staging_token=st.just(StagingToken(f"stg-{99:032x}")), compacted_metarange_id=st.none(),
                        compaction_started_at_ms=st.none() | st.integers(0, 2 * 10**12))
    counts, sizes = st.integers(0, 5_000), st.integers(0, 1 << 30)
    return Views(st.builds(StagingView, repository=st.just("main"), branch=st.just("main"), record=records, puts=counts,
                           tombstones=counts, longest_run=counts, staged_bytes=sizes, all_seen=st.booleans(),
                           ranges=counts, ranges_touched=counts, bytes_touched=sizes))


# --------------------------------------------------------------------------------------------------- scheduler jobs

def job_views() -> Views[AssignmentView]:
    """Draw jobs of up to three levels and four tenants, with leased jobs.

    The judge requires that a choice names jobs of the view, each once, and at most `view.capacity`.
    """
    jobs = st.builds(
        WaitingJob, name=st.uuids().map(str), tenant=st.sampled_from(_TENANTS), shard=st.just(0),
        level=st.integers(0, 2), blocks=st.integers(1, 20), size_bytes=st.integers(0, 1 << 30),
        added_at=st.integers(0, 2_000_000_000).map(float), failures=st.integers(0, 3), sequence=st.integers(0, 1 << 30))
    return Views(st.builds(
        _assignment_view, st.lists(jobs, max_size=12, unique_by=lambda job: job.name),
        st.integers(1, 15),
        st.lists(st.integers(0, 4), min_size=len(_TENANTS), max_size=len(_TENANTS))), _judge_jobs)


_TENANTS = "ABCD"


def _assignment_view(jobs: list[WaitingJob], capacity: int, leased: Sequence[int]) -> AssignmentView:
    levels = []
    for number in sorted({job.level for job in jobs}):
        ready = sorted((job for job in jobs if job.level == number and job.failures < 2),
                       key=lambda job: (job.failures, job.sequence))
        again = tuple(job for job in jobs if job.level == number and job.failures >= 2)
        tenants = tuple(TenantLine(tenant, count, tuple(job for job in ready if job.tenant == tenant))
                        for tenant, count in zip(_TENANTS, leased, strict=True)
                        if any(job.tenant == tenant for job in ready))
        levels.append(LevelView(number, sum(leased) // 2, tenants, again))
    return AssignmentView(capacity=capacity, levels=tuple(levels), queued=len(jobs) + sum(leased), leased=sum(leased))


def _judge_jobs(policy: AssignmentPolicy, view: AssignmentView, _: float, choice: Any) -> None:
    assert isinstance(choice, JobChoice), f"{policy.name}: choose() returned {choice!r}; return a JobChoice"
    known = {job.name for level in view.levels for jobs in (level.ready, level.again) for job in jobs}
    strange = [name for name in choice.jobs if name not in known]
    assert not strange, f"{policy.name}: {strange} are not in the view; take names from view.levels"
    assert len(set(choice.jobs)) == len(choice.jobs), f"{policy.name}: a job is named twice in {choice.jobs}"
    assert len(choice.jobs) <= view.capacity, (
        f"{policy.name}: {len(choice.jobs)} jobs for a capacity of {view.capacity}; return at most view.capacity, or "
        f"the poll fails")
