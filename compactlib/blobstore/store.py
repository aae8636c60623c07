# SPDX-License-Identifier: Apache-2.0
"""`BlobStore`: blobs in a segmented log, with time to live, delete and undelete.

Any thread may call any method. Reads never wait for writes: a read works on the contents of the log at its start, and
is repeated if a compaction has removed its file. Writes follow each other under one lock.

`BlobStore` is the owner's face. `Log` makes every change of the log, `Compactor` compacts, and `operations` decides
which operation a blob's state allows and which record it writes. Calls go downwards only.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from compactlib._closing import closed_on_failure
from compactlib.blobstore.blobs import BlobInfo, BlobState, Deleted, blob_state, info_after
from compactlib.blobstore.compact import Compactor, limited, require_own, run_many
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents
from compactlib.blobstore.errors import BlobConflict, BlobMissing, StoreFull
from compactlib.blobstore.hard_delete import reclaim
from compactlib.blobstore.log import leftovers
from compactlib.blobstore.opening import BlobRecoveryReport, make_folder, open_log
from compactlib.blobstore.operations import (
    as_successor,
    covering_record,
    draft_delete,
    draft_put,
    draft_replicated,
    draft_ttl_update,
    draft_undelete,
    rank_of,
)
from compactlib.blobstore.plan import BlobPlan
from compactlib.blobstore.reading import Reading
from compactlib.blobstore.records import NO_EXPIRY, BlobId, IndexEntry, RecordFlag, RecordKind, id_bytes, milliseconds
from compactlib.blobstore.replication import FoundEntries, ReplicationToken, entries_since
from compactlib.blobstore.report import BlobCompactionReport, BlobReclaimReport, BlobStoreStatus
from compactlib.blobstore.statistics import plan_eviction
from compactlib.blobstore.survivors import Place
from compactlib.blobstore.validity import never
from compactlib.blobstore.view import BlobPolicy, BlobView
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Closed, CompactlibError, CorruptData, InvalidInput, Stale, StorageError
from compactlib.files.disk import Files, LocalFiles, StrPath, list_folder, local_path
from compactlib.guard import Guard, Run
from compactlib.observer import Observer, Observers
from compactlib.rewrite import Executor

if TYPE_CHECKING:
    from compactlib.contract import CommitFence

StoreWork: TypeAlias = "tuple[BlobStore, BlobPlan | None]"
"""A store and its plan; `None`: the store's policy makes the plan."""


class BlobStore(Reading):
    """A store in its own folder, open for reading and writing by this process alone.

    A store that fails in the middle of a change closes itself: every later call raises `Closed` with the reason.

    Every write raises `StoreFull` if no segment is free and a store that evicts cannot free one, and `StorageError` if
    the disk refused; the write has not happened then.

    Args:
        folder: the store's folder; created if it does not exist, inside an existing folder.
        config: the settings. A new store takes its capacities from here, an existing store has them on disk.
        policy: chooses the segments to compact, default `StatsBased()`.
        seen_by_all_peers: returns whether every peer has read a tombstone, given its index entry; `purge_tombstones`
            removes such tombstones.
        place: returns the class of a record that a compaction copies; records of one class share segments.
        files: the disk.
        clock: the source of time.
        observer: notified of progress, counters and events.
        name: the store's name in messages; default the folder's name.
        create: whether a store may be created. If not, a folder without a store raises `NotAStore` and is not changed.
        new_incarnation: returns the 16 bytes of a new store, for tests that need fixed ones.

    Attributes:
        recovery: the damage and the repairs that opening the store found.

    Raises:
        Busy: another process or object has the store open.
        NotAStore: the folder holds something else; or it holds no store, and `create` is not set.
        InvalidInput: the capacity of a new store is no multiple of its segments' capacity.
        CorruptData: neither the list nor a segment identifies the store, or all segments are missing. A store
            with other damage opens: see `recovery`.
        Unsupported: a format version is newer than this release.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, config: BlobStoreConfig | None = None, *, policy: BlobPolicy | None = None,
                 seen_by_all_peers: Callable[[IndexEntry], bool] = never, place: Place | None = None,
                 files: Files | None = None, clock: Clock | None = None, observer: Observer | None = None,
                 name: str | None = None, create: bool = True,
                 new_incarnation: Callable[[], bytes] = lambda: uuid.uuid4().bytes) -> None:
        path = local_path(folder)
        config = BlobStoreConfig() if config is None else config
        files = LocalFiles() if files is None else files
        observers = Observers(observer)
        self._guard = Guard(f"the blob store in {path}")
        self._evicting: set[int] = set()  # the threads that evict
        self._planning = threading.Lock()  # of the thread that plans an eviction, which reads the whole index
        make_folder(path, config, files, create=create)
        with self._guard.lock, self._guard.opening():
            log, recovery = open_log(self._guard, path, config, files, SystemClock() if clock is None else clock,
                                     new_incarnation)
        super().__init__(path, name, config, policy, files, log.clock, log.descriptor, log.segments, observers)
        self._log = log
        self.recovery: BlobRecoveryReport = recovery
        purge = seen_by_all_peers if config.purge_tombstones else None
        self._compactor = Compactor(log, self.name, purge, place, self._observer)
        with closed_on_failure(self):
            self._deliver()

    # -- operations

    def put(self, blob_id: BlobId, content: bytes | bytearray | memoryview, *,
            ttl_seconds: float | None = None, account: int = 0, container: int = 0, replace: bool = False) -> BlobInfo:
        """Store a blob under an id that is unknown, or that belongs to an expired blob.

        Args:
            blob_id: 1 to 1024 bytes.
            content: the bytes.
            ttl_seconds: the time to live; strictly after it the blob has expired. `None`: it never expires.
            account, container: numbers that the host chooses.
            replace: replace a blob of this id, live or deleted. Its content becomes garbage immediately, and a delete
                of it cannot be undone any more.

        Raises:
            BlobExists: the id belongs to a blob that has not expired; the blob may be deleted.
            BlobTooLarge: the record does not fit into a segment.
            InvalidInput: the id, the time to live or another argument is out of its range.
        """
        key = id_bytes(blob_id)
        held = content if isinstance(content, bytes) else bytes(memoryview(content))
        entry, _ = self._write(key, lambda history: (draft_put(
            key, history, content_bytes=len(held), now_ms=self._now_ms(), ttl_seconds=ttl_seconds, account=account,
            container=container, replace=replace), held))
        self._count("puts", 1)
        self._count("put_bytes", len(held))
        return info_after((), entry)

    def delete(self, blob_id: BlobId) -> Deleted:
        """Delete a blob; within the retention it can be undeleted.

        Raises:
            BlobMissing: the id is not known.
            BlobDeleted: it is deleted already.
        """
        entry, _ = self._change(blob_id, draft_delete)
        return Deleted(entry.id, entry.op_time_ms / 1000, entry.life_version)

    def discard(self, blob_id: BlobId) -> bool:
        """Delete a blob unless it is missing or deleted; return whether it was deleted now."""
        try:
            self.delete(blob_id)
        except (BlobMissing, BlobConflict):
            return False
        return True

    def undelete(self, blob_id: BlobId) -> BlobInfo:
        """Undo a delete that is not older than the retention; the blob's next life begins.

        Raises:
            BlobMissing: the id is not known.
            NotDeleted: the blob is live; `AlreadyUndeleted` if for the second time.
            DeletedForGood: the delete is older than `deleted_retention_seconds`, or the content was dropped.
            BlobExpired: its time to live is over.
        """
        entry, history = self._change(blob_id, draft_undelete, milliseconds(self.config.deleted_retention_seconds))
        return info_after(history, entry)

    def ttl_update(self, blob_id: BlobId) -> BlobInfo:
        """Make a blob permanent: it never expires.

        Raises:
            BlobMissing: the id is not known.
            BlobDeleted: it is deleted.
            BlobExpired: its time to live is over.
            TtlAlreadyUpdated: it is permanent.
            TtlUpdateTooLate: it expires within `ttl_update_buffer_seconds`.
        """
        entry, history = self._change(blob_id, draft_ttl_update, milliseconds(self.config.ttl_update_buffer_seconds))
        return info_after(history, entry)

    def append_replicated(self, kind: RecordKind, blob_id: BlobId, content: bytes = b"", *, op_time: float,
                          life_version: int = 0, expires_at: float | None = None, permanent: bool = False,
                          account: int = 0, container: int = 0) -> IndexEntry:
        """Append a peer's record, unless a local record already covers it; return the record that counts.

        The call is idempotent. A PUT of a blob that is deleted here, with its content dropped, counts only in a later
        life. Of two PUTs that two replicas accepted independently, both replicas keep the later one; of equal times the
        one with the greater account, container, content or expiry. The observer is notified of `blobstore_put_twice`.

        Raises:
            InvalidInput: a field is out of its range, or a record other than a PUT has content.
            CorruptData: the local PUT of this id is damaged.
            BlobTooLarge: the record does not fit into a segment.
        """
        draft = draft_replicated(kind, blob_id, content, op_time=op_time, life_version=life_version,
                                 expires_at=expires_at, permanent=permanent, account=account, container=container)

        def covered_or_new(history: Sequence[IndexEntry]) -> tuple[IndexEntry, bytes | None]:
            state = blob_state(history)
            known = self._counting_put(draft, content, state)
            if known is None:
                known = covering_record(draft, state, history)
            if known is not None:
                return known, None
            return draft if state is None else as_successor(draft, state, history), content

        return self._write(draft.id, covered_or_new)[0]

    def entries_since(self, token: ReplicationToken | None = None) -> FoundEntries:
        """Return the blobs that have changed since a token, for a peer that follows this store.

        At most `find_max_entries` records are read; repeat with the returned token until `at_end`. The log is synced
        first: after a crash the numbers of lost records would belong to other records, which the peer would skip.

        Raises:
            StorageError: the disk refused a sync.
        """
        snapshot = self._log.snapshot()
        self._log.sync()
        return entries_since(snapshot, token, self._log.next_sequence, self.config.find_max_entries)

    def _change(self, blob_id: BlobId, draft: Callable[..., IndexEntry], *limit_ms: int,
                ) -> tuple[IndexEntry, Sequence[IndexEntry]]:
        """Append a record without content, drafted from the blob's state and the time."""
        key = id_bytes(blob_id)
        return self._write(key, lambda history: (draft(key, blob_state(history), self._now_ms(), *limit_ms), b""))

    def _write(self, key: bytes, draft: Callable[[Sequence[IndexEntry]], tuple[IndexEntry, bytes | None]],
               ) -> tuple[IndexEntry, Sequence[IndexEntry]]:
        """Append a record that is drafted from the blob's history; evict other blobs if the log is full, as configured.

        Return the record, durable as configured, and the history before it.
        """
        log = self._log
        while True:
            try:
                with self._guard.use():
                    with self._guard.lock:
                        self._guard.require_open()
                        history = log.contents.find(key)
                        entry, content = draft(history)
                        if content is not None:
                            entry = log.append(entry, content)
                    log.wait_for(entry)
                return entry, history
            except StoreFull:
                thread = threading.get_ident()
                if not self.config.evicts or self._guard.is_in_run or thread in self._evicting:
                    raise  # an observer of the eviction, perhaps
                try:
                    self._evicting.add(thread)
                    if not self._evict():
                        raise
                finally:
                    self._evicting.discard(thread)
            finally:
                self._deliver()

    def _evict(self) -> bool:
        """Free an eighth of a full log, at least one segment; return whether there is room now.

        The first of several writers evicts, and the others wait for its compaction; no lock is held during that.
        """
        log, least = self._log, 1
        while True:
            with self._planning:
                self._guard.wait_for_runs()
                if log.free_segments:
                    return True
                view, snapshot = self.view(), log.snapshot()
                plans = (plan_eviction(view, snapshot, self._compactor.purge, wanted, self.policy, log.clock.now())
                         for wanted in dict.fromkeys((max(log.descriptor.log_segments // 8, least), least)))
                plan = next(filter(None, plans), None)
            if plan is None:
                return bool(log.free_segments)
            try:
                report = self.compact(plan, budget=Budget(clock=log.clock))
            except (Busy, Stale):
                continue  # another compaction began or ended since the plan
            except (StorageError, Closed):
                raise
            except CompactlibError:
                if plan.reference_time > max(log.clock.now() - self.config.deleted_retention_seconds, 0.0):
                    continue  # the clock was set back since the plan
                return False
            if report.is_empty and not log.free_segments:
                return False
            log.events.append(("blobstore_evicted", {"store": self.name, "expires_before": plan.expires_before,
                                                     "freed_segments": report.freed_segments}))
            if report.freed_segments < 1:
                # Blobs larger than `max_blob_bytes` need more room than the plan assumed.
                least = 2 * max(plan.benefit_segments, least)

    # -- compactions

    def compact(self, plan: BlobPlan | None = None, *, policy: BlobPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> BlobCompactionReport:
        """Carry out a plan, by default the policy's choice. Gets and puts run concurrently; a committed step stays.

        Args:
            plan: a plan of this store. Not together with `policy`.
            policy: replaces the store's policy.
            executor: runs the copying; default this thread.
            budget: limits the work; the configured rate applies unless the budget has a rate.
            observer: notified, in addition to the store's observer.
            fence: entered around each commit.

        Returns:
            The report. Empty if nothing was chosen, partial if the budget or the room on the disk ended it; `why` says
            the reason.

        Raises:
            InvalidInput: plan and policy are both given, the plan is for another store, or it would drop blobs that can
                still be undeleted.
            Busy: a compaction or a reclaim is running; `BudgetSpent` if the budget ended before the first commit.
            PlanDoesNotFit: the log has changed since the plan was made; plan again.
            CompactionFailed: some steps failed, or a fence after a commit; it carries the report. If nothing was
                committed, the error of the only failed step, or of the damage, is raised instead.
            StorageError, Closed, Exception: of the disk, the store, or a policy or a fence.
        """
        self._guard.require_open()
        if plan is not None and policy is not None:
            raise InvalidInput("compact() takes a plan or a policy, not both: a plan is the choice of a policy")
        if plan is not None:
            require_own(plan, self.name, self._log)
        chosen = self.policy if policy is None else policy
        steps = self._compactor.steps(plan, chosen, budget, observer, fence)
        try:
            found = run_many({"": steps}, executor, self.clock, None)[""]
        finally:
            self._deliver()
        if isinstance(found, Exception):
            raise found
        return found

    def reclaim(self, *, budget: Budget | None = None) -> BlobReclaimReport:
        """Remove the leftovers of interrupted compactions; with `hard_delete`, overwrite the content of every deleted
        blob whose delete is in effect, in place.

        The next call continues an interrupted hard delete.

        Args:
            budget: limits the work; `hard_delete_bytes_per_second` applies unless the budget has a rate.

        Returns:
            The report; partial if the budget or the room on the disk ended the work.

        Raises:
            Busy: a compaction or another reclaim is running.
        """
        self._guard.require_open()
        run = Run(self._guard, limited(budget, self.config.hard_delete_bytes_per_second, self._log))
        try:
            with run.held:
                run.begin("compaction")
                run.budget.check()
                report = reclaim(self._log, self.name, run.budget)
        finally:
            self._deliver()
        if report.was_reset:
            self._observer.event("blobstore_hard_delete_reset", store=self.name, error=report.was_reset)
        if report.erased_records:
            self._observer.event("blobstore_contents_erased", store=self.name, records=report.erased_records,
                                 bytes_written=report.erased_bytes)
        return report

    def close_active_segment(self) -> None:
        """Seal the active segment and begin the next one, a write; an empty active segment stays."""
        self._log.close_active()
        self._deliver()

    # -- its state, and its end

    def flush(self) -> None:
        """Make everything written durable. `StorageError`: the disk refused, and the store is closed."""
        self._log.sync()

    @property
    def free_fraction(self) -> float:
        """The free part of the log's segments, 0 to 1; a `CompactionManager` reads it for `LowSpace`."""
        return self._log.free_segments / self._log.descriptor.log_segments

    def status(self) -> BlobStoreStatus:
        """Return the counters of the store, from memory."""
        log, contents, error = self._log, self._log.snapshot(), self._compactor.last_error
        return BlobStoreStatus.of(
            self.name, self._descriptor, contents, damaged_segments=len(self._compactor.damaged),
            eligible_segments=len(log.eligible()), unsynced=not log.is_synced, next_sequence=log.next_sequence,
            is_busy=bool(self._guard.running), compactions=self._compactor.begun, failures=self._compactor.failures,
            last_error="" if error is None else f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Cancel a running compaction and wait for its end, sync the log, and unlock the folder.

        Closing again does nothing. An error of the last sync leaves it closed.

        Raises:
            Busy: called from within a compaction of the store, by an observer for example, and nothing was done; or
                another thread still uses the store after half a minute, and the store is closed.
        """
        self._guard.require_outside()
        self._guard.cancel()
        try:
            self._log.end()
        finally:
            self._guard.release()
            self._deliver()

    def __repr__(self) -> str:
        state = f"{len(self._log.contents.segments)} segments" if self._guard.is_open else "closed"
        return f"{type(self).__name__}({self.folder!r}, {state})"

    # -- internal

    def _contents(self) -> LogContents:
        self._guard.require_open()
        return self._log.contents

    def _newest(self) -> LogContents:
        return self._log.snapshot()

    def _view_for(self, policy: BlobPolicy, budget: Budget) -> BlobView:
        self._guard.require_open()
        return self._compactor.view(policy, budget)

    def _out_of_order(self) -> tuple[list[CorruptData], list[str]]:
        if self._guard.running:
            return [], []
        layout = self._log.layout()
        return list(layout.damage), leftovers(list_folder(self.folder), layout)

    def _using(self) -> AbstractContextManager[object]:
        return self._guard.use()

    def _counting_put(self, draft: IndexEntry, content: bytes, state: BlobState | None) -> IndexEntry | None:
        """Return the local PUT if it equals or supersedes the peer's PUT; else `None`."""
        known = None if state is None or not state.has_content else state.put
        if draft.kind != RecordKind.PUT or state is None or known is None:
            return None
        here: tuple[Any, ...] = (known.op_time_ms,)
        there: tuple[Any, ...] = (draft.op_time_ms,)
        if here == there:
            # Where a TTL update is known, here or there, the PUT may come with its expiry or without.
            if state.newest.is_permanent or draft.flags & RecordFlag.TTL_UPDATED:
                known, draft = known._replace(expires_ms=NO_EXPIRY), draft._replace(expires_ms=NO_EXPIRY)
            here, there = rank_of(known, self._content(self._log.contents, known)), rank_of(draft, content)
        if here == there:
            return state.put
        self._log.events.append(("blobstore_put_twice", {
            "store": self.name, "id": draft.id, "kept_put_at": max(here, there)[0] / 1000,
            "other_put_at": min(here, there)[0] / 1000, "is_here": here > there}))
        return state.put if here > there else None

    def _deliver(self) -> None:
        """Notify the observer of the events that the log collected under its lock."""
        while self._log.events:
            with contextlib.suppress(IndexError):
                name, fields = self._log.events.pop(0)
                self._observer.event(name, **fields)


def compact_many(work: Sequence[StoreWork], *, executor: Executor | None = None, budget: Budget | None = None,
                 observer: Observer | None = None, fence: CommitFence | None = None,
                 ) -> Mapping[str, BlobCompactionReport | Exception]:
    """Compact many stores, each as `BlobStore.compact` does. One store's failure does not stop the others.

    One run of the executor copies the next step of every store; each store commits its own step.

    Args:
        work: each store and its plan.
        executor, observer, fence: as of `BlobStore.compact`.
        budget: limits the work of all stores together.

    Returns:
        By the folder of each store: the report, or the error that `compact` would have raised.

    Raises:
        InvalidInput: two plans are for one store, or a plan is for another store than its own.
    """
    if len({store.folder for store, _ in work}) != len(work):
        raise InvalidInput("two plans are for one store; carry out one after the other")
    every = {}
    for store, plan in work:
        if plan is not None:
            require_own(plan, store.name, store._log)
        every[store.folder] = store._compactor.steps(plan, store.policy, budget, observer, fence)
    if not work:
        return {}
    try:
        return run_many(every, executor, work[0][0].clock, budget)
    finally:
        for store, _ in work:
            store._deliver()
