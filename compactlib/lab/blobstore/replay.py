"""Replays a workload against a blob store's policy, on metadata alone.

The policy is the one that a store would be given, and it is shown the same views: a decision here is a decision there.
"""

from __future__ import annotations

import copy
from array import array
from typing import TYPE_CHECKING

from compactlib.arguments import require_policy
from compactlib.blobstore.compaction.plan.policy import Choice, Policy
from compactlib.lab.blobstore.log import BlobLog
from compactlib.lab.blobstore.records import NEVER
from compactlib.lab.results.measures import Measures
from compactlib.lab.results.reports import ReplayReport
from compactlib.lab.traces.operations import DELETE, FOREVER, PUT, Operations
from compactlib.lab.traces.workloads import Workload
from compactlib.report import PolicyRecord
from compactlib.runtime.observe import Observer, Progress

if TYPE_CHECKING:
    from compactlib.lab.blobstore.settings import BlobSettings

MAX_ROUNDS = 10_000
"""The most choices that one question may lead to."""
_PATIENCE = 1_000


def replay_blobs(workload: Workload, policy: Policy, settings: BlobSettings, *, seed: int = 0,
                 observer: Observer | None = None) -> ReplayReport:
    """What `policy` makes of `workload`. About a microsecond an operation; memory follows the records in the log.

    Equal arguments give equal reports. A policy that draws at random draws from a copy of its generator.

    Args:
        workload: what is asked of the store.
        policy: who decides.
        settings: the store, and when the policy is asked.
        seed: of the workload.
        observer: told of progress, in operations.

    Raises:
        InvalidInput: a record does not fit into a segment.
        PlanDoesNotFit: the policy named a segment that it may not take.
        InvalidInput: it is no policy.
    """
    replay = BlobReplay(policy, settings, expected_operations=workload.operations)
    told = Observer() if observer is None else observer
    work = f"replay {workload.name} against {policy.name}"
    for piece in workload.pieces(seed):
        replay.feed(piece)
        total = max(workload.operations, replay.operations + 1)
        told.progress(Progress(work, replay.operations, total, "operations"))
    told.progress(Progress(work, replay.operations, replay.operations, "operations"))
    return replay.report(str(workload))


class BlobReplay:
    """A replay under way; feed it pieces, ask for the report. One thread at a time.

    Args:
        policy: who decides; copied, so that the caller's does not change.
        settings: the store, and when the policy is asked.
        expected_operations: how many will come, for the length of an interval; 0: an interval a piece.
        store: what the store is called in views and plans.
    """

    def __init__(self, policy: Policy, settings: BlobSettings, *, expected_operations: int = 0,
                 store: str = "lab") -> None:
        self.log: BlobLog = BlobLog(settings, name=store)
        self.operations: int = 0
        require_policy("policy", policy)
        self._policy = copy.deepcopy(policy)
        self._settings = settings
        self._retention_ms = round(settings.deleted_retention_seconds * 1000)
        self._interval = max(expected_operations // settings.intervals, 1) if expected_operations else 0
        self._begun = False
        self._now_ms = 0
        self._intervals: list[Measures] = []
        self._until_check = settings.check_every_operations
        self._ask_again_at = 0
        self._fresh_counts()

    def _fresh_counts(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(
            ("operations", "reads", "refused", "user_bytes", "copied_bytes", "read_bytes", "asked", "compactions",
             "victims", "freed_segments", "reclaimed_bytes", "used_sum", "live_sum", "record_sum",
             "peak_used_bytes"), 0)
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
        if not self._begun:
            self._begun = True
            self._now_ms = self._started_ms = self.log.records.since = piece.times_ms[0]
        self.log.records.know_keys(max(piece.keys) + 1)
        plain = (piece.are_plain_puts and not self._settings.tombstone_bytes and not self.log.records.has_lives
                 and not self._settings.forecast_seconds and not self._retention_ms)
        if plain:
            self._feed_plain(piece)
        else:
            self._feed_rows(piece)
        self.log.advance(self._now_ms)
        if not self._interval or self._counts["operations"] >= self._interval:
            self._close_interval()

    def _feed_plain(self, piece: Operations) -> None:
        log = self.log
        assert isinstance(piece.sizes, int)
        size = piece.sizes + self._settings.record_overhead_bytes
        keys, times = array("i", piece.keys), array("q", piece.times_ms)
        done, count = 0, len(keys)
        while done < count:
            room = log.room(size)
            if not room:
                self._now_ms = times[done]
                if not self._make_room():
                    self._count_refused(1)
                    done += 1
                continue
            step = min(room, count - done, self._until_check or count)
            log.put_plainly(keys[done:done + step], times[done:done + step], size)
            done += step
            self._now_ms = times[done - 1]
            self._counts["user_bytes"] += step * size
            self._made(step)

    def _feed_rows(self, piece: Operations) -> None:
        overhead = self._settings.record_overhead_bytes
        for kind, key, size, life, at in piece.rows():
            self._now_ms = at
            if kind == PUT:
                self._put(key, size + overhead, NEVER if life == FOREVER else at + life, at)
            elif kind == DELETE:
                self._delete(key, at)
            else:
                self._counts["reads"] += 1
            self._made(1)

    def _put(self, key: int, size: int, until: int, at: int) -> None:
        log = self.log
        if not self._has_room_for(size):
            self._count_refused(0)
            return
        record = log.append(size, at, until, key)
        self._counts["user_bytes"] += size
        old, log.records.current[key] = log.records.current[key], record
        if old >= 0:
            self._leave(old, at)

    def _delete(self, key: int, at: int) -> None:
        current = self.log.records.current
        old = current[key]
        if old >= 0:
            current[key] = -1
            self._leave(old, at)

    def _leave(self, record: int, at: int) -> None:
        """The record of a key is replaced or deleted, unless it has expired before."""
        records, tombstone = self.log.records, self._settings.tombstone_bytes
        due, until = at + self._retention_ms, records.until[record]
        if until < at:
            return
        if due < until:
            # Only then does the delete decide when it dies.
            records.leaves(record, due)
            if records.has_lives or self._settings.forecast_seconds:
                records.until[record] = due
        if tombstone and self._has_room_for(tombstone):
            self.log.append(tombstone, at)
            self.log.tombstone_bytes += tombstone
            self._counts["user_bytes"] += tombstone

    def _has_room_for(self, size: int) -> bool:
        return bool(self.log.room(size)) or (self._make_room() and bool(self.log.room(size)))

    def _make_room(self) -> bool:
        """Begin a segment; ask the policy first if too few are free."""
        free = self.log.free_segments
        if free <= self._settings.min_free_segments and (free or self.operations >= self._ask_again_at):
            self._ask_until_free()
            if not self.log.free_segments:
                # Whoever fills a full log asks with every operation; the answer changes less often.
                self._ask_again_at = self.operations + _PATIENCE
        return self.log.roll()

    def _count_refused(self, operations: int) -> None:
        self._counts["refused"] += 1
        self._counts["operations"] += operations
        self.operations += operations

    def _made(self, operations: int) -> None:
        self._counts["operations"] += operations
        self.operations += operations
        if self._until_check:
            self._until_check -= operations
            if not self._until_check:
                self.check()
                self._until_check = self._settings.check_every_operations

    def wait_until(self, now_ms: int) -> None:
        """Let time pass without operations. A time that is past changes nothing."""
        self._now_ms = max(self._now_ms, now_ms)

    # ------------------------------------------------------------------------------------------------------ deciding

    def check(self) -> Choice:
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
        self._waited_ms += done.waited
        return choice

    def _ask_until_free(self) -> None:
        for _ in range(MAX_ROUNDS):
            before = self.log.free_segments
            if self.check().is_empty or self.log.free_segments <= before:
                return
            if self.log.free_segments > self._settings.min_free_segments:
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
            used_bytes=self.log.used_bytes, live_bytes=self.log.live_bytes, **self._counts))
        self._fresh_counts()

    def report(self, workload: str) -> ReplayReport:
        """What has come of it so far; `workload` is what was replayed, in words."""
        if any(self._counts.values()) or not self._intervals:
            self._close_interval()
        return ReplayReport(policy=str(PolicyRecord.of(self._policy)), workload=workload,
                            intervals=tuple(self._intervals))
