# SPDX-License-Identifier: Apache-2.0
"""For those who write compaction policies for a blob store: random stores for Hypothesis, and one call to try a policy.

>>> from compactlib.blobstore import StatsBased
>>> check_blob_policy(StatsBased(), max_examples=10)

The contract that is checked is the one of `compactlib.blobstore.compaction.plan.policy`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import accumulate, pairwise

from compactlib.blobstore.compaction.plan.last_plans import LastPlans
from compactlib.blobstore.compaction.plan.plan import BlobPlan, forecast, plan_for_choice
from compactlib.blobstore.compaction.plan.policy import BlobChoice, BlobPolicy, BlobView, Dying, SegmentView
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import NO_EXPIRY, IndexEntry, RecordFlag, RecordKind
from compactlib.errors import InvalidInput, MissingDependency

try:
    from hypothesis import given, note, strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying a policy on random stores") from None

from compactlib.testing.histories.blob_histories import BlobHistory, BlobStep, blob_histories
from compactlib.testing.kit.examples import as_always
from compactlib.testing.policies.policy_conformance import check_policy

NOW = 1_700_000_000.0
"""The time at which random views are looked at, seconds since the epoch."""
_DAY = 86_400.0
_VIEWS_PER_HISTORY = 4
_LIFE_SECONDS = (0.0, 60.0, 3_600.0, _DAY, 30 * _DAY)
_FADING = ((), (), ((0.0, 1),), ((3_600.0, 2),), ((3_600.0, 1),), ((60.0, 3), (_DAY, 2), (30 * _DAY, 1)))
"""When something of a segment dies, and which part of what is left by then: a half, a third, all."""


# ------------------------------------------------------------------------------------------------- segment layouts

@st.composite
def segment_views(draw: st.DrawFn, name: SegmentName, room_bytes: int, fill_bytes: int) -> SegmentView:
    """One sealed segment: empty, wholly valid, just at the edge of what an output takes, or in between.

    Args:
        name: its name.
        room_bytes: what a segment holds beside its header.
        fill_bytes: what an output is sure to take.
    """
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
def store_views(draw: st.DrawFn, *, max_segments: int = 12) -> BlobView:
    """Whole stores: any number of segments at any positions, some of which may not be taken; nearly empty and full.

    Args:
        max_segments: the most sealed segments; there is one more, which is written to.
    """
    header, reserve = draw(st.sampled_from([(20, 80), (0, 0), (18, 400)]))
    segment_bytes = draw(st.sampled_from([1_000, 999, 1_048_576]))
    room = segment_bytes - header
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 3]), max_size=max_segments))
    names = [SegmentName(position, draw(st.integers(0, 2))) for position in accumulate(steps)]
    segments = [draw(segment_views(name, room, room - reserve)) for name in names]
    active = SegmentName(sum(steps) + 1, 0)
    segments.append(SegmentView(name=active, used_bytes=0, valid_bytes=0, eligible=False))
    capacity = segment_bytes * (len(segments) + draw(st.sampled_from([0, 0, 1, 20])))
    return BlobView(store=draw(st.sampled_from(["disk1/7", "disk2/7", ""])), capacity_bytes=capacity,
                     segment_bytes=segment_bytes, header_bytes=header, max_blob_bytes=reserve,
                     used_bytes=segment_bytes * len(names), reference_time=NOW - 7 * _DAY,
                     retention_seconds=7 * _DAY, segments=tuple(segments), history=draw(plan_histories()))


def plan_histories() -> st.SearchStrategy[LastPlans]:
    """Stores that are new, and stores whose schedules are due or not."""
    times = st.sampled_from([NOW, NOW - _DAY, NOW - 7 * _DAY, 0.0])
    return st.builds(LastPlans, since=times, last_full_at=st.none() | times, last_middle_range_at=st.none() | times)


# ------------------------------------------------------------------------------------------------- blob lifetimes

@st.composite
def record_logs(draw: st.DrawFn, *, max_records: int = 24, blobs: int = 4,
                forgetful: bool = True) -> tuple[tuple[IndexEntry, ...], ...]:
    """The index entries of a log, segment by segment, each ascending by offset: blobs that were put, deleted, made
    permanent and undeleted, each as its state allowed, at times in milliseconds from 0 to a few hundred.

    Args:
        max_records: the most records.
        blobs: among how many blobs they are spread.
        forgetful: leave some records out, as if an earlier compaction had removed them, and let segments lie in another
            order than that of time.
    """
    writer = _Writer()
    for _ in range(draw(st.integers(0, max_records))):
        writer.step(draw(st.integers(0, blobs - 1)), draw(st.sampled_from(_STEPS)),
                    wait_ms=draw(st.sampled_from([0, 1, 1, 10])),
                    life_ms=draw(st.sampled_from([NO_EXPIRY, NO_EXPIRY, 0, 5, 50])))
    entries = writer.entries
    if forgetful and entries:
        gone = draw(st.sets(st.integers(0, len(entries) - 1), max_size=3))
        entries = [entry for place, entry in enumerate(entries) if place not in gone]
    cuts = draw(st.sets(st.integers(0, len(entries)), max_size=3))
    pieces = [entries[start:end] for start, end in pairwise([0, *sorted(cuts), len(entries)])]
    if forgetful:
        pieces = draw(st.permutations(pieces))
    return tuple(_laid_out(SegmentName(place, 0), piece) for place, piece in enumerate(pieces))


_STEPS = (RecordKind.PUT, RecordKind.PUT, RecordKind.DELETE, RecordKind.TTL_UPDATE, RecordKind.UNDELETE)
_SIZES = {RecordKind.PUT: 53, RecordKind.DELETE: 29, RecordKind.TTL_UPDATE: 37, RecordKind.UNDELETE: 31}


class _Writer:
    """Writes records as a store would: what a blob's state does not allow is left out."""

    def __init__(self) -> None:
        self.entries: list[IndexEntry] = []
        self._newest: dict[int, IndexEntry] = {}
        self._now_ms = 0

    def step(self, blob: int, kind: RecordKind, wait_ms: int, life_ms: int) -> None:
        self._now_ms += wait_ms
        before = self._newest.get(blob)
        if before is None:
            kind = RecordKind.PUT
        elif kind == RecordKind.PUT or (kind == RecordKind.UNDELETE) != (before.kind == RecordKind.DELETE):
            return
        permanent = kind == RecordKind.TTL_UPDATE or (before is not None and before.flags)
        expires = self._now_ms + life_ms if life_ms >= 0 else NO_EXPIRY
        self._newest[blob] = entry = IndexEntry(
            id=b"blob %d" % blob, kind=kind, flags=RecordFlag.TTL_UPDATED if permanent else RecordFlag.NONE,
            life_version=(before.life_version if before else 0) + (kind == RecordKind.UNDELETE),
            sequence=len(self.entries) + 1, op_time_ms=self._now_ms,
            expires_ms=NO_EXPIRY if permanent else before.expires_ms if before else expires,
            account=1, container=blob % 2, segment=SegmentName(0, 0), offset=0, size=_SIZES[kind] + blob)
        self.entries.append(entry)


def _laid_out(name: SegmentName, entries: Sequence[IndexEntry]) -> tuple[IndexEntry, ...]:
    """The entries one behind the other in a segment."""
    offsets = accumulate((entry.size for entry in entries), initial=64)
    return tuple(entry._replace(segment=name, offset=offset) for entry, offset in zip(entries, offsets, strict=False))


# ------------------------------------------------------------------------------------------------- trying a policy

def check_blob_policy(policy: BlobPolicy, *, max_examples: int = 100, max_segments: int = 12,
                      comes_to_rest: bool = True) -> None:
    """Try `policy` on random stores and return if it keeps its contract on all of them.

    The contract is that of every policy (`check_policy`: pure, frozen, never `None`, with a reason), and that of
    `compactlib.blobstore.compaction.plan.policy`: it takes only eligible segments, each once, and comes to rest:
    choosing from what the
    plan before would leave must end, each plan leaving fewer segments or less that is dead. Then its plans are carried
    out in small real stores, which live through random histories: no answer may change by it. All is the same in each
    call.

    Args:
        policy: the policy, configured as it will be used.
        max_examples: how many stores to plan for; a fourth as many are real ones, in temporary folders.
        max_segments: how many sealed segments they may have.
        comes_to_rest: `False` for a policy that compacts for the sake of it, as `CompactAll` without `skip_valid`.

    Raises:
        AssertionError: it does not; the message says which rule, and Hypothesis shows the smallest store it found.
    """
    def judge(view: BlobView, now: float, choice: BlobChoice) -> None:
        note(f"{policy.name} chose {choice!r}")
        if not _checked_plan(policy, view, choice).is_empty and comes_to_rest:
            rounds_to_rest(policy, view)

    check_policy(policy, store_views(max_segments=max_segments), times=(NOW,), max_examples=max_examples, judge=judge)

    @as_always(max_examples // _VIEWS_PER_HISTORY)
    @given(blob_histories())
    def blobs_stay(history: tuple[BlobStep, ...]) -> None:
        with tempfile.TemporaryDirectory(prefix="compactlib-policy-") as folder, BlobHistory(folder, policy) as store:
            for step in history:
                store.step(step)

    if max_examples >= _VIEWS_PER_HISTORY:
        blobs_stay()


def rounds_to_rest(policy: BlobPolicy, view: BlobView) -> int:
    """How many plans follow one another, each on what the one before would leave, until there is nothing to do.

    Raises:
        AssertionError: a plan neither leaves fewer segments nor less that is dead, so that it would never end.
    """
    rounds = 0
    while not (plan := plan_for_choice(view, policy.choose(view, NOW), policy, NOW)).is_empty:
        after = forecast(plan, view)
        assert _size(after) < _size(view), (
            f"{policy.name}: this plan makes no progress: it would leave {_told(after)}, as before, and be made again. "
            f"Take nothing that frees no segment and holds nothing dead: {plan!r}")
        view = after
        rounds += 1
    return rounds


def _size(view: BlobView) -> tuple[int, int]:
    return len(view.segments), sum(segment.used_bytes - segment.valid_bytes for segment in view.segments)


def _told(view: BlobView) -> str:
    segments, dead = _size(view)
    return f"{segments} segments with {dead:,} dead bytes"


def _checked_plan(policy: BlobPolicy, view: BlobView, choice: object) -> BlobPlan:
    assert isinstance(choice, BlobChoice), (
        f"{policy.name}: choose() answered {choice!r}; give a BlobChoice, an empty one that says why if nothing is "
        f"worth it")
    try:
        return plan_for_choice(view, choice, policy, NOW)
    except InvalidInput as error:
        raise AssertionError(f"{policy.name}: {error}. It takes segments of view.eligible and no others") from error
