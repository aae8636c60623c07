# SPDX-License-Identifier: Apache-2.0
"""For those who write compaction policies: random logs for Hypothesis, and one call that tries a policy on many.

>>> from compactlib.raftlog import SeedPolicy
>>> check_policy(SeedPolicy(max_sources=4), max_examples=10)
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.raftlog.compaction.plan.plan import plan_for
from compactlib.raftlog.compaction.plan.policy import (
    LogChoice,
    LogPolicy,
    checked_choice,
    is_worthwhile,
    stored_dead_bytes,
)
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.model.values import SegmentLimits, SegmentRef, SegmentStats
from compactlib.report import PolicyRecord

try:
    from hypothesis import given, note, strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying a policy on random logs") from None

from compactlib.testing.kit.examples import as_always

NOW = 1_700_000_000.0
"""When policies are asked."""
_PAYLOAD_BYTES = (0, 1, 26, 1024, 70_000)


def segments_of(*counts: tuple[int, int, int, int]) -> tuple[SegmentStats, ...]:
    """Segments 1, 2, 3, ... with the given `(entries, live entries, payload bytes, live payload bytes)`.

    Each covers as many indexes as it holds entries, from 1 on, without gaps.
    """
    segments: list[SegmentStats] = []
    first = 1
    for number, (entries, live_entries, data_bytes, live_bytes) in enumerate(counts, 1):
        ref = SegmentRef(number, first, first + entries - 1)
        segments.append(SegmentStats(ref=ref, entries=entries, data_bytes=data_bytes, live_entries=live_entries,
                                     live_bytes=live_bytes))
        first += entries
    return tuple(segments)


def segment_limits() -> st.SearchStrategy[SegmentLimits]:
    """Small and large limits, also some under which a single segment is already too large."""
    return st.builds(SegmentLimits, max_entries=st.sampled_from([1, 16, 128, 4096]),
                     max_bytes=st.sampled_from([1, 5_000, 1_000_000, 64_000_000]))


@st.composite
def segment_stats(draw: st.DrawFn, ref: SegmentRef, *, min_live: int = 0, max_entries: int = 256) -> SegmentStats:
    """One segment: dense, sparse, in between, or all dead; entries of one size, or of sizes as uneven as can be.

    Args:
        ref: which segment, and its range; a range of n indexes holds 1 .. n entries that can be live.
        min_live: the fewest live entries, 0 or 1.
        max_entries: the most entries; a segment may hold more of them than its range, the rest overwritten.
    """
    entries = draw(st.integers(1, max_entries))
    most = min(entries, ref.last - ref.first + 1)
    live = draw(st.integers(min_live, most) | st.sampled_from([min_live, most]))
    each = draw(st.sampled_from(_PAYLOAD_BYTES))
    live_bytes, dead_bytes = live * each, (entries - live) * each
    if each and draw(st.booleans()):
        # All the weight on one side: the many live entries tiny, or the dead ones.
        live_bytes, dead_bytes = (live, dead_bytes) if draw(st.booleans()) else (live_bytes, entries - live)
    return SegmentStats(ref=ref, entries=entries, data_bytes=live_bytes + dead_bytes, live_entries=live,
                        live_bytes=live_bytes, format=draw(st.sampled_from(["native", "ra2"])))


@st.composite
def segment_sequences(draw: st.DrawFn, *, min_live: int = 0, max_segments: int = 24) -> tuple[SegmentStats, ...]:
    """Segments of one log, oldest to newest, with gaps between their numbers and between their ranges.

    Args:
        min_live: 1 gives what a policy is shown, 0 what a log may hold.
        max_segments: the most segments.
    """
    segments: list[SegmentStats] = []
    number = last = 0
    alike = draw(st.none() | st.sampled_from([(4, 4), (256, 1), (128, 64)]))
    for _ in range(draw(st.integers(0, max_segments))):
        number += draw(st.sampled_from([1, 1, 1, 5]))
        first = last + draw(st.sampled_from([1, 1, 100]))
        last = first + draw(st.integers(0, 255))
        if alike is None:
            segments.append(draw(segment_stats(SegmentRef(number, first, last), min_live=min_live)))
        else:
            entries, live = alike
            last = first + entries - 1
            segments.append(SegmentStats(ref=SegmentRef(number, first, last), entries=entries, data_bytes=26 * entries,
                                         live_entries=live, live_bytes=26 * live))
    return tuple(segments)


def view_of_candidates(segments: Sequence[SegmentStats], limits: SegmentLimits) -> LogView:
    """A log in which a policy may choose from `segments`, each with something alive: a newest one follows them."""
    number, last = (segments[-1].number, segments[-1].ref.last) if segments else (0, 0)
    newest = SegmentStats(ref=SegmentRef(number + 1, last + 1, last + 1), entries=1, data_bytes=1, live_entries=1,
                          live_bytes=1)
    return LogView(segments=(*segments, newest), snapshot_index=last, limits=limits)


@st.composite
def compaction_views(draw: st.DrawFn, *, max_segments: int = 24) -> LogView:
    """Whole logs: any number of segments, the snapshot anywhere or not taken yet."""
    segments = draw(segment_sequences(max_segments=max_segments))
    ends = [segment.ref.last for segment in segments]
    end = ends[-1] if ends else 0
    snapshot = draw(st.none() | st.just(end) | st.integers(0, end) | st.sampled_from([0, *ends]))
    return LogView(segments=segments, snapshot_index=snapshot, limits=draw(segment_limits()))


def check_policy(policy: LogPolicy, *, max_examples: int = 100, max_segments: int = 24) -> None:
    """Try `policy` on random logs and return if it keeps its contract on all of them.

    It must have a name, answer the same question the same way, leave its settings alone, put each candidate into one
    valid group or leave it out with a reason, say why, choose no group whose rewrite changes nothing, and come to rest:
    planning on what the plan before would leave must end, each plan shortening the log or freeing something. The logs
    are the same in each call.

    Args:
        policy: the policy, configured as it will be used.
        max_examples: how many logs.
        max_segments: how long they may be.

    Raises:
        AssertionError: it does not; Hypothesis shows the smallest log it found.
        InvalidInput: the same, for a choice that `checked_choice` refuses.
    """
    _check_identity(policy)

    @as_always(max_examples)
    @given(segment_sequences(min_live=1, max_segments=max_segments), segment_limits())
    def choices_are_valid(segments: tuple[SegmentStats, ...], limits: SegmentLimits) -> None:
        _check_one_choice(policy, view_of_candidates(segments, limits))

    @as_always(max_examples)
    @given(compaction_views(max_segments=max_segments))
    def plans_come_to_rest(view: LogView) -> None:
        rounds_to_rest(policy, view)

    choices_are_valid()
    plans_come_to_rest()


def rounds_to_rest(policy: LogPolicy, view: LogView) -> int:
    """How many plans follow one another, each on what the one before would leave, until one is empty.

    Raises:
        AssertionError: a plan neither shortens the log nor frees anything, so that it would never end.
    """
    rounds = 0
    while not (plan := plan_for(view, policy, NOW)).is_empty:
        after = plan.forecast(view)
        assert _size(after) < _size(view), f"{policy.name}: {plan!r} makes no progress"
        view = after
        rounds += 1
    return rounds


def _size(view: LogView) -> tuple[int, int]:
    return len(view.segments), sum(map(stored_dead_bytes, view.segments))


def _check_identity(policy: LogPolicy) -> None:
    assert type(policy.name) is str, f"a policy's name is text, found {policy.name!r}"
    assert policy.name, "a policy needs a name"


def _check_one_choice(policy: LogPolicy, view: LogView) -> None:
    record = PolicyRecord.of(policy)
    choice = _asked(policy, view)
    note(f"{policy.name} chose {choice}")
    assert _asked(policy, attrs.evolve(view)) == choice, (
        f"{policy.name}: not a pure function: two equal questions got two answers. Decide by the view and the time "
        f"alone; a dry run must show what the compaction will do")
    assert PolicyRecord.of(policy) == record, (
        f"{policy.name}: choose() changed the settings; a report records them once")
    try:
        checked_choice(choice, view, policy=policy.name)
    except InvalidInput as error:
        error.add_note(f"view: {view}")
        raise
    by_number = {segment.number: segment for segment in view.candidates}
    for group in choice.groups:
        assert is_worthwhile([by_number[number] for number in group]), \
            f"{policy.name}: segment {group[0]} is wholly live, rewriting it alone changes nothing; leave it out " \
            f"(is_worthwhile)"
    for left in choice.left_out:
        assert left.reason, (
            f"{policy.name}: segment {left.number} is left out without a reason; plans show it to operators")
    assert choice.why, (f"{policy.name}: the choice has no `why`; say what made it, or which setting kept it from "
                        f"choosing anything, with its value")


def _asked(policy: LogPolicy, view: LogView) -> LogChoice:
    try:
        choice: object = policy.choose(view, NOW)
    except InvalidInput:
        raise
    except Exception as error:
        raise AssertionError(
            f"{policy.name}: choose() raised {error!r}. It is asked about every log, also one without segments "
            f"that can be compacted; leave out what is not worth it") from error
    assert isinstance(choice, LogChoice), (
        f"{policy.name}: choose() answered {choice!r}; give a LogChoice: groups, what is left out with reasons, "
        f"and why")
    return choice
