# SPDX-License-Identifier: Apache-2.0
"""Replays a workload against a blob store's policy, on metadata alone.

The policy is the one that a store would be given, and it is shown the same views: a decision here is a decision there.
"""

from __future__ import annotations

import copy
from collections import Counter

import attrs

from compactlib.blobstore import BlobChoice, BlobPolicy
from compactlib.lab.blobstore.layout import BlobLayout
from compactlib.lab.blobstore.log import BlobLog
from compactlib.lab.blobstore.placement.placement import NEVER
from compactlib.lab.results.measures import Measures
from compactlib.lab.results.reports import ReplayReport
from compactlib.lab.traces.operations import DELETE, FOREVER, PUT, Operations
from compactlib.lab.traces.workloads import Workload
from compactlib.observer import Observer, Observers
from compactlib.report import PolicyRecord

MAX_ROUNDS = 10_000
"""The most choices that one question may lead to."""
_PATIENCE = 1_000


@attrs.frozen(kw_only=True)
class BlobSettings(BlobLayout):
    """The store of a replay, and when its policy is asked: the settings are those of `BlobLayout`."""

    def replay(self, workload: Workload, policy: BlobPolicy, *, seed: int,
               observer: Observer | None = None) -> ReplayReport:
        return replay_blobs(workload, policy, self, seed=seed, observer=observer)

    def read_report(self, text: str) -> ReplayReport:
        return ReplayReport.from_json(text)

    def name_of(self, policy: BlobPolicy) -> str:
        return policy.name


def replay_blobs(workload: Workload, policy: BlobPolicy, settings: BlobSettings, *, seed: int = 0,
                 observer: Observer | None = None) -> ReplayReport:
    """Replay `workload` against `policy`. Two to eight microseconds an operation, the more the more often the policy is
    asked and the more segments there are; memory follows the records in the log.

    Equal arguments give equal reports. A policy that draws at random draws from a copy of its generator.

    Args:
        workload: what is asked of the store.
        policy: the policy that decides.
        settings: the store, and when the policy is asked.
        seed: of the workload.
        observer: notified of progress, in operations.

    Raises:
        InvalidInput: a record does not fit into a segment.
        PlanDoesNotFit: the policy named a segment that it may not take.
        InvalidInput: it is no policy.
    """
    replay = BlobReplay(policy, settings, expected_operations=workload.operations)
    told = Observers(observer)
    work = f"replay {workload.name} against {policy.name}"
    for piece in workload.pieces(seed):
        replay.feed(piece)
        total = max(workload.operations, replay.operations + 1)
        told.event("progress", work=work, done=replay.operations, total=total, unit="operations")
    told.event("progress", work=work, done=replay.operations, total=replay.operations, unit="operations")
    return replay.report(str(workload))


class BlobReplay:
    """A replay under way; feed it pieces, ask for the report. One thread at a time.

    Args:
        policy: the policy that decides; copied, so that the caller's does not change.
        settings: the store, and when the policy is asked.
        expected_operations: how many will come, for the length of an interval; 0: an interval a piece.
        store: what the store is called in views and plans.
    """

    def __init__(self, policy: BlobPolicy, settings: BlobSettings, *, expected_operations: int = 0,
                 store: str = "lab") -> None:
        self.log: BlobLog = BlobLog(settings, name=store)
        self.operations: int = 0
        self._policy = copy.deepcopy(policy)
        self._settings = settings
        self._interval = max(expected_operations // settings.intervals, 1) if expected_operations else 0
        self._begun = False
        self._now_ms = 0
        self._intervals: list[Measures] = []
        self._until_check = settings.check_every_operations
        self._ask_again_at = 0
        self._gate = "the policy was not asked"
        classes = 1 if settings.placement is None else settings.placement.classes
        self._min_free: int = classes if settings.min_free_segments is None else settings.min_free_segments
        self._fresh_counts()

    def _fresh_counts(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(
            ("operations", "reads", "refused", "copied_bytes", "read_bytes", "asked", "compactions",
             "victims", "freed_segments", "reclaimed_bytes", "used_sum", "live_sum", "record_sum",
             "peak_used_bytes", "most_moved_bytes"), 0)
        self._refused_by: Counter[str] = Counter()
        self._user_bytes = 0
        self._waited_ms = 0.0
        self._started_ms = self._now_ms

    # ------------------------------------------------------------------------------------------------------- feeding

    def feed(self, piece: Operations) -> None:
        """Make these operations.

        Raises:
            InvalidInput: a record does not fit into a segment.
        """
        if not len(piece):
            return
        log, settings, user_bytes = self.log, self._settings, 0
        overhead, tombstone, is_watched = (settings.record_overhead_bytes, settings.tombstone_bytes,
                                           settings.deaths_are_watched)
        if not self._begun:
            self._begun = True
            self._now_ms = self._started_ms = log.since = piece.times_ms[0]
        log.know_keys(max(piece.keys) + 1)
        current, append, leave = log.current, log.append, log.leave
        for kind, key, size, life, at in piece.rows():
            if at != self._now_ms:
                if is_watched:
                    self._ask_about_the_dead()
                self._now_ms = at
            if kind == PUT:
                size += overhead
                until = NEVER if life == FOREVER else at + life
                placed = self._place(key, size, at, until) if is_watched else 0
                record = append(size, at, until, key, placed)
                if record < 0 and self._make_room(size, placed):
                    record = append(size, at, until, key, placed)
                if record < 0:
                    self._count_refused()
                else:
                    user_bytes += size
                    # Read only now: it may have expired while room was made.
                    old, current[key] = current[key], record
                    if old >= 0 and leave(old, at) and tombstone:
                        self._write_tombstone(at)
            elif kind == DELETE:
                self._delete(key, at)
            else:
                self._counts["reads"] += 1
            self.operations += 1
            if self._until_check:
                self._until_check -= 1
                if not self._until_check:
                    self.check()
                    self._until_check = settings.check_every_operations
        if is_watched:
            self._ask_about_the_dead()
        log.advance(self._now_ms)
        self._user_bytes += user_bytes
        self._counts["operations"] += len(piece)
        if not self._interval or self._counts["operations"] >= self._interval:
            self._close_interval()

    def _ask_about_the_dead(self) -> None:
        if self._settings.max_dead_fraction < 1 and self.log.has_dead_beyond(self._settings.max_dead_fraction):
            self.check()

    def _place(self, key: int, size: int, at: int, until: int) -> int:
        """Have die what is dead by now; return the class of a record. A placement chooses by what is left."""
        log = self.log
        log.advance(at)
        if log.placer is None:
            return 0
        if (old := log.current[key]) >= 0:
            log.leave(old, at)
            log.current[key] = -1
        return log.place_write(key, size, at, until)

    def _delete(self, key: int, at: int) -> None:
        log, tombstone = self.log, self._settings.tombstone_bytes
        old = log.current[key]
        if old < 0 or log.until[old] < at:
            return
        if tombstone and not log.has_room(tombstone) and not self._make_room(tombstone):
            self._count_refused()
        elif log.current[key] == old:
            # It may have expired while room was made.
            log.current[key] = -1
            if log.leave(old, at) and tombstone:
                self._write_tombstone(at)

    def _write_tombstone(self, at: int) -> None:
        log, tombstone = self.log, self._settings.tombstone_bytes
        if not log.has_room(tombstone) and not self._make_room(tombstone):
            self._count_refused()
            return
        log.append(tombstone, at)
        log.tombstone_bytes += tombstone
        self._user_bytes += tombstone

    def _make_room(self, size: int, placed: int = 0) -> bool:
        """Begin a segment of a class; ask the policy first if too few are free."""
        free = self.log.free_segments
        if free <= self._min_free and (free or self.operations >= self._ask_again_at):
            self._ask_until_free()
            if not self.log.free_segments:
                # A writer that fills a full log asks with every operation; the answer changes less often.
                self._ask_again_at = self.operations + _PATIENCE
        # What was copied just now may have begun one.
        return self.log.has_room(size, placed) or self.log.roll(placed)

    def _count_refused(self) -> None:
        self._counts["refused"] += 1
        self._refused_by[self._gate] += 1

    def wait_until(self, now_ms: int) -> None:
        """Let time pass without operations. A time that is past changes nothing."""
        self._now_ms = max(self._now_ms, now_ms)

    # ------------------------------------------------------------------------------------------------------ deciding

    def check(self) -> BlobChoice:
        """Ask the policy now, and carry out its choice; gives the choice."""
        log, counts = self.log, self._counts
        view = log.view(self._now_ms)
        counts["asked"] += 1
        self._sample()
        choice = self._policy.choose(view, self._now_ms / 1000)
        if choice.is_empty:
            return choice
        done = log.compact(choice, self._now_ms)
        counts["compactions"] += 1
        counts["victims"] += done.victims
        counts["freed_segments"] += done.victims - done.outputs
        counts["copied_bytes"] += done.copied_bytes
        counts["read_bytes"] += done.read_bytes
        counts["reclaimed_bytes"] += done.reclaimed_bytes
        counts["most_moved_bytes"] = max(counts["most_moved_bytes"], done.read_bytes + done.copied_bytes)
        self._waited_ms += done.waited
        return choice

    def _ask_until_free(self) -> None:
        for _ in range(MAX_ROUNDS):
            before = self.log.free_segments
            choice = self.check()
            if choice.is_empty or self.log.free_segments <= before:
                self._gate = choice.why if choice.is_empty else f"what was chosen freed no segment: {choice.why}"
                return
            if self.log.free_segments > self._min_free:
                return

    # ----------------------------------------------------------------------------------------------------- reporting

    def _sample(self) -> None:
        counts, log = self._counts, self.log
        counts["used_sum"] += log.used_bytes
        counts["live_sum"] += log.live_bytes
        counts["record_sum"] += log.record_bytes
        counts["peak_used_bytes"] = max(counts["peak_used_bytes"], log.used_bytes)

    def _close_interval(self) -> None:
        self._sample()
        self._intervals.append(Measures(
            start=self._started_ms / 1000, end=self._now_ms / 1000, waited_byte_seconds=self._waited_ms / 1000,
            capacity_bytes=self._settings.segments * self._settings.segment_bytes,
            user_bytes=self._user_bytes, used_bytes=self.log.used_bytes,
            live_bytes=self.log.live_bytes, refused_by=self._refused_by.items(),
            **self._counts))
        self._fresh_counts()

    def report(self, workload: str) -> ReplayReport:
        """What has come of it so far; `workload` is what was replayed, in words."""
        if any(self._counts.values()) or not self._intervals:
            self._close_interval()
        return ReplayReport(policy=str(PolicyRecord.of(self._policy)), workload=workload,
                            intervals=tuple(self._intervals))
