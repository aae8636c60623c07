# SPDX-License-Identifier: Apache-2.0
"""`BlobStore`: blobs in a segmented log, with time to live, delete and undelete.

Any thread may call any method. Reads never wait for writes: they work on the contents of the log that were current when
they began, and try again if a compaction has removed a file under them. Writes follow each other under one lock.

What an owner calls stands here. The log and each change of it is `Log`'s; compactions are the `Compactor`'s; which
operation a blob's state allows, and what it writes, is in `operations`. Each of them calls downwards only.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from compactlib.blobstore.blobs import BlobInfo, BlobState, Deleted, GetOptions, blob_state, info_after
from compactlib.blobstore.compact import Compactor, limited, local_executor, require_own, run_many
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents
from compactlib.blobstore.errors import BlobConflict, BlobMissing, StoreFull
from compactlib.blobstore.eviction import plan_eviction
from compactlib.blobstore.hard_delete import Erased, erase_deleted
from compactlib.blobstore.log import leftovers
from compactlib.blobstore.names import SegmentName
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
from compactlib.blobstore.segment import SegmentFile
from compactlib.blobstore.survivors import Place
from compactlib.blobstore.validity import PurgeRules, never
from compactlib.blobstore.view import BlobPolicy, BlobView
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput, StorageError
from compactlib.files.disk import Files, LocalFiles, StrPath, list_folder, local_path
from compactlib.guard import Guard, Run
from compactlib.observer import Observer, Observers
from compactlib.rewrite import Executor

if TYPE_CHECKING:
    from compactlib.contract import CommitFence

_PLAIN = GetOptions()
StoreWork: TypeAlias = "tuple[BlobStore, BlobPlan | None]"
"""A store and its plan, or `None` for the plan that its own policy makes now."""


def _new_incarnation() -> bytes:
    return uuid.uuid4().bytes


class BlobStore(Reading):
    """A store in a folder of its own, open for reading and writing by this process alone.

    A store that fails in the middle of a change (an error of the disk, a Ctrl-C) closes itself. Every later call is
    `Closed`, which says why; opening it again finds all that was acknowledged.

    Args:
        folder: where its files lie; created (in an existing folder) if it does not exist.
        config: how it is kept. Capacities are used when the store is created and come from the disk afterwards.
        policy: decides what is worth compacting, default `StatsBased()`.
        seen_by_all_peers: whether every peer that counts has read a tombstone, given its index entry; with
            `purge_tombstones`, such tombstones go.
        place: returns the class of a record that a compaction copies: those of one class share segments.
        files: the disk.
        clock: where time comes from.
        observer: notified of progress, counters and events.
        name: what it is called in messages; the folder's name if not given.
        create: whether the store may be made. If not, a folder without one is `NotAStore`, and stays as it is.
        new_incarnation: gives a new store its 16 bytes, for tests that need them to repeat.

    Raises:
        Busy: another process or object has it open.
        NotAStore: the folder holds something else; or no store, and `create` is not set.
        InvalidInput: the capacity of a new store is no multiple of its segments'.
        CorruptData: neither the descriptor nor any segment says what the store is, or all its segments are gone. Other
            damage is no reason not to open: see `recovery`.
        Unsupported: a format version is newer than this release.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, config: BlobStoreConfig | None = None, *, policy: BlobPolicy | None = None,
                 seen_by_all_peers: Callable[[IndexEntry], bool] = never, place: Place | None = None,
                 files: Files | None = None, clock: Clock | None = None, observer: Observer | None = None,
                 name: str | None = None, create: bool = True,
                 new_incarnation: Callable[[], bytes] = _new_incarnation) -> None:
        path = local_path(folder)
        config = BlobStoreConfig() if config is None else config
        files = LocalFiles() if files is None else files
        self._observer = Observers(observer)
        self._guard = Guard(f"the blob store in {path}")
        self._evicting = threading.Lock()
        make_folder(path, config, files, create=create)
        try:
            with self._guard.lock:
                self._guard.begin("its opening")
                self._log, self._recovery = open_log(self._guard, path, config, files,
                                                     SystemClock() if clock is None else clock, new_incarnation)
                self._guard.done()
        except BaseException:
            self._guard.release()
            raise
        super().__init__(path, name, config, policy, files, self._log.clock, self._log.descriptor)
        purge = PurgeRules(purge_tombstones=config.purge_tombstones, seen_by_all_peers=seen_by_all_peers)
        self._compactor = Compactor(self._log, self._name, self._policy, purge, place, self._observer)
        self._deliver()

    @property
    def clock(self) -> Clock:
        """The time of the store: behind the host's while a step of that is not confirmed."""
        return self._clock

    @property
    def recovery(self) -> BlobRecoveryReport:
        """What opening the store has found out of order."""
        return self._recovery

    # -- operations

    def put(self, blob_id: BlobId, content: bytes | bytearray | memoryview, *,
            ttl_seconds: float | None = None, account: int = 0, container: int = 0, replace: bool = False) -> BlobInfo:
        """Store a blob under an id that is not known, or whose blob has expired.

        Args:
            blob_id: 1 to 1024 bytes.
            content: the bytes.
            ttl_seconds: how long it lives; strictly after that it is expired. `None` for no end.
            account: account number.
            container: container number.
            replace: take the place of the blob of this id, if there is one, live or deleted. Its content is garbage at
                once: no delete is kept of it that could be undone.

        Raises:
            BlobExists: the id is known and has not expired; it may be that of a deleted blob.
            BlobTooLarge: it does not fit into a segment.
            InvalidInput: the id, the time to live or another argument is out of its range.
            StoreFull: no segment is left, and where the store evicts, giving up what expires would not change that.
            StorageError: the disk refused; the blob is not stored.
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
            StoreFull: no segment is left for the record.
            StorageError: the disk refused; nothing has changed.
        """
        key = id_bytes(blob_id)
        entry, _ = self._write(key, lambda history: (draft_delete(key, blob_state(history), self._now_ms()), b""))
        return Deleted(key, entry.op_time_ms / 1000, entry.life_version)

    def discard(self, blob_id: BlobId) -> bool:
        """Delete a blob if there is one that is not deleted; return whether there was."""
        try:
            self.delete(blob_id)
        except (BlobMissing, BlobConflict):
            return False
        return True

    def undelete(self, blob_id: BlobId) -> BlobInfo:
        """Take back a delete that is not older than the retention; the blob's next life begins.

        Raises:
            BlobMissing: the id is not known.
            NotDeleted: the blob is live; `AlreadyUndeleted` if for the second time.
            DeletedForGood: the delete is older than `deleted_retention_seconds`, or the content is gone.
            BlobExpired: its time to live is over.
            StoreFull: no segment is left for the record.
            StorageError: the disk refused; nothing has changed.
        """
        key = id_bytes(blob_id)
        retention_ms = milliseconds(self.config.deleted_retention_seconds)
        entry, history = self._write(key, lambda history: (draft_undelete(
            key, blob_state(history), self._now_ms(), retention_ms), b""))
        return info_after(history, entry)

    def ttl_update(self, blob_id: BlobId) -> BlobInfo:
        """Make a blob permanent: it does not expire any more.

        Raises:
            BlobMissing: the id is not known.
            BlobDeleted: it is deleted.
            BlobExpired: its time to live is over.
            TtlAlreadyUpdated: it was made permanent before.
            TtlUpdateTooLate: it expires within `ttl_update_buffer_seconds`.
            StoreFull: no segment is left for the record.
            StorageError: the disk refused; nothing has changed.
        """
        key = id_bytes(blob_id)
        buffer_ms = milliseconds(self.config.ttl_update_buffer_seconds)
        entry, history = self._write(key, lambda history: (draft_ttl_update(
            key, blob_state(history), self._now_ms(), buffer_ms), b""))
        return info_after(history, entry)

    def append_replicated(self, kind: RecordKind, blob_id: BlobId, content: bytes = b"", *, op_time: float,
                          life_version: int = 0, expires_at: float | None = None, permanent: bool = False,
                          account: int = 0, container: int = 0) -> IndexEntry:
        """Append a record as a peer has it, unless a local record already covers it, which is returned then.

        So a peer may begin again from its first record, as often as it likes: nothing is written twice, no deleted blob
        comes back and no live one goes. Of two records of a blob the one of the later life counts, in one life the
        DELETE; a PUT whose blob is deleted here, and whose content is gone, counts only in a later life. Of two PUTs
        that two replicas have taken without knowing of each other, the later one counts on both, or if they are of one
        time, the one whose account, container, content or expiry is the greater one; the observer is notified of
        `blobstore_put_twice`.

        Raises:
            InvalidInput: a field is out of its range, or a record other than a PUT has content.
            CorruptData: a PUT of this id is here, and is damaged.
            BlobTooLarge: it does not fit into a segment.
            StoreFull: no segment is left.
            StorageError: the disk refused.
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

    def entries_since(self, token: ReplicationToken | None = None, *, max_bytes: int | None = None) -> FoundEntries:
        """Return the blobs that have changed since a token, for a peer that follows this store.

        At most `find_max_entries` records are read; ask again with the answer's token until `at_end`. What is answered
        is durable: a crash would else give its numbers to other records, which the peer would take for known.

        Raises:
            InvalidInput: a limit is below 1.
            StorageError: the disk refused a sync.
        """
        snapshot = self._log.snapshot()
        self._log.sync()
        return entries_since(snapshot, token, self._log.next_sequence, max_entries=self.config.find_max_entries,
                             max_bytes=max_bytes)

    def _write(self, key: bytes, draft: Callable[[Sequence[IndexEntry]], tuple[IndexEntry, bytes | None]],
               ) -> tuple[IndexEntry, Sequence[IndexEntry]]:
        """Append a record of a blob, drafted from its history; where the store evicts, in the room that this makes.

        Returns:
            The record, durable as configured, and the history before it.
        """
        log = self._log
        with self._guard.use():
            while True:
                try:
                    with self._guard.lock:
                        self._guard.require_open()
                        history = log.contents.find(key)
                        entry, content = draft(history)
                        if content is not None:
                            entry = log.append(entry, content)
                    break
                except StoreFull:
                    if not self.config.evicts or not self._evict():
                        raise
                finally:
                    self._deliver()
            log.wait_for(entry)
        return entry, history

    def _evict(self) -> bool:
        """Make room in a full log: an eighth of it, at least one segment. Whoever comes meanwhile waits for that.

        Returns:
            Whether there is room now.
        """
        log, least = self._log, 1
        total = log.descriptor.log_segments
        if self._guard.is_in_run:
            return False
        with self._evicting:
            while not log.free_segments:
                view = self.view()
                plan = None
                for segments in dict.fromkeys((max(total // 8, least), least)):
                    plan = plan or plan_eviction(view, log.snapshot(), self._compactor.purge, segments, self._policy,
                                                 log.clock.now())
                if plan is None:
                    return False
                try:
                    report = self.compact(plan, budget=Budget(clock=log.clock))
                except (Busy, InvalidInput):
                    # Another compaction may make the room; or the clock was set back since the plan was made.
                    self._guard.wait_for_runs()
                    continue
                except StorageError:
                    raise
                except CompactlibError:
                    return False
                if report.is_empty and not log.free_segments:
                    return False
                self._observer.event("blobstore_evicted", store=self._name, expires_before=plan.expires_before,
                                     freed_segments=report.freed_segments)
                if report.freed_segments < 1:
                    # Blobs larger than `max_blob_bytes` need more room than was planned for.
                    least = 2 * max(plan.benefit_segments, least)
        return True

    # -- compactions

    def compact(self, plan: BlobPlan | None = None, *, policy: BlobPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> BlobCompactionReport:
        """Carry out a plan, by default what the policy chooses now. Gets and puts go on meanwhile.

        It works in steps of at most eight new segments; each is committed by itself, and what was committed stays,
        whatever ends the compaction. Memory: 24 bytes a copied record of one step, and a few MiB. `compact_many`
        compacts many stores in one run of the executor.

        Args:
            plan: of this store. Not together with `policy`.
            policy: instead of the store's own.
            executor: runs the copying; default this thread.
            budget: what the work may use up; without a rate of its own, it has the configured one.
            observer: notified, besides the store's own.
            fence: entered around each commit.

        Returns:
            What was done. Empty if nothing was worth it, partial if the budget or the room on the disk ended it; `why`
            says so.

        Raises:
            InvalidInput: plan and policy together; the plan is for another store, or would drop what can still be
                undeleted.
            Busy: a compaction or a reclaim is running; `BudgetSpent` if the budget ended before anything was committed.
            PlanDoesNotFit: the log has changed since the plan was made; plan again.
            CompactionFailed: some steps failed; it has the report. If the only one failed, its own error is raised.
            CorruptData: damage kept it from changing anything.
            StorageError: the disk refused.
            Closed: the store is closed, or closed itself.
            Exception: what a policy or a fence raised that is none of the library's errors.
        """
        self._check_given(plan, policy)
        steps = self._compactor.steps(plan, policy, budget, observer, fence)
        try:
            found = run_many({"": steps}, local_executor(self._log) if executor is None else executor, None)[""]
        finally:
            self._deliver()
        if isinstance(found, CompactlibError):
            raise found
        return found

    def _check_given(self, plan: BlobPlan | None, policy: BlobPolicy | None) -> None:
        self._guard.require_open()
        if plan is not None and policy is not None:
            raise InvalidInput("compact() takes a plan or a policy, not both: a plan is what a policy has chosen")
        if plan is not None:
            require_own(plan, self._name, self._log)

    def reclaim(self, *, budget: Budget | None = None) -> BlobReclaimReport:
        """Remove what interrupted compactions have left, and where the store is configured so, overwrite the content of
        every deleted blob whose delete is in effect, where it lies.

        What was overwritten stays so, and the next call goes on.

        Args:
            budget: what the work may use up; without a rate of its own, it has `hard_delete_bytes_per_second`.

        Returns:
            What was done; partial if the budget or the room on the disk ended it.

        Raises:
            Busy: a compaction or another reclaim is running.
            StorageError: the disk refused.
            Closed: the store is closed.
        """
        log, erased = self._log, Erased()
        self._guard.require_open()
        run = Run(self._guard, limited(budget, self.config.hard_delete_bytes_per_second, log))
        try:
            with run.held:
                run.begin("compaction")
                run.budget.check()
                removed, size = log.remove_leftovers()
                if removed:
                    log.files.sync_folder(log.folder)
                if self.config.hard_delete:
                    erased = erase_deleted(log, run.budget)
        finally:
            self._deliver()
        if erased.was_reset:
            self._observer.event("blobstore_hard_delete_reset", store=self._name, error=erased.was_reset)
        if erased.records:
            self._observer.event("blobstore_contents_erased", store=self._name, records=erased.records,
                                 bytes_written=erased.bytes_written)
        why = erased.why
        if not removed and not erased.records and not why:
            why = f"store {self._name} has nothing to reclaim: no attempt has left a file" + (
                ", and no delete came into effect since the last time" if self.config.hard_delete else "")
        return BlobReclaimReport(store=self._name, removed=tuple(removed), bytes_freed=size,
                                 erased_records=erased.records, erased_bytes=erased.bytes_written,
                                 sequence=erased.sequence, why=why, is_partial=bool(erased.why))

    def close_active_segment(self) -> None:
        """Seal the active segment and begin the next one; does nothing to an empty one.

        Raises:
            StoreFull: no segment is left.
            StorageError: the disk refused.
        """
        log = self._log
        with self._guard.lock:
            self._guard.require_open()
            if log.contents.active.records:
                log.roll()
        self._deliver()

    # -- its state, and its end

    def flush(self) -> None:
        """Make everything written durable.

        Raises:
            StorageError: the disk refused, and the store is closed.
        """
        self._log.sync()

    @property
    def free_fraction(self) -> float:
        """The part of the log's segments that have not begun; a `CompactionManager` reads it for `LowSpace`."""
        return self._log.free_segments / self._log.descriptor.log_segments

    @property
    def is_managed(self) -> bool:
        """Whether a `CompactionManager` compacts the store, which sets this."""
        return self._log.is_managed

    @is_managed.setter
    def is_managed(self, is_managed: bool) -> None:
        self._log.is_managed = is_managed

    def status(self) -> BlobStoreStatus:
        """Return the store in numbers, from memory."""
        log, contents, error = self._log, self._log.snapshot(), self._compactor.last_error
        parts = [part for segment in contents.segments for part in segment.parts]
        lost = sum(segment.is_lost for segment in contents.segments)
        return BlobStoreStatus(
            name=self._name, capacity_bytes=self.capacity_bytes, used_bytes=contents.used_bytes(self.segment_bytes),
            segments=len(contents.segments), free_segments=log.free_segments,
            eligible_segments=len(log.eligible()), damaged_segments=len(self._compactor.damaged) + lost,
            active_segment=str(contents.active.name), records=sum(segment.records for segment in contents.segments),
            index_memory_bytes=contents.directory.memory_bytes() + sum(part.memory_bytes() for part in parts),
            unsynced=not log.writer.is_synced, next_sequence=log.next_sequence, is_busy=bool(self._guard.running),
            is_managed=log.is_managed, last_error="" if error is None else f"{type(error).__name__}: {error}",
            failures=self._compactor.failures)

    def audit(self) -> None:
        self._log.audit()

    def close(self) -> None:
        """Cancel what compacts the store and wait for it, make everything durable, and let the folder go.

        Closing again does nothing. What a compaction has committed stays.

        Raises:
            Busy: called from within a compaction of the store, by an observer for example, and nothing was done; or
                another thread still uses the store after half a minute, and it is closed all the same.
            StorageError: the disk refused the last sync; the store is closed all the same.
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

    def _has_changed(self, contents: LogContents) -> bool:
        return self._log.contents is not contents

    def _has(self, name: SegmentName) -> bool:
        return self._log.contents.has(name)

    def _file(self, name: SegmentName, contents: LogContents) -> SegmentFile:
        return self._log.segments.get(name, self._has)

    def _view_for(self, policy: BlobPolicy, budget: Budget) -> BlobView:
        self._guard.require_open()
        return self._compactor.view(policy, budget)

    def _out_of_order(self) -> tuple[list[CorruptData], list[str]]:
        if self._guard.running:
            return [], []
        layout = self._log.layout()
        return list(layout.damage), leftovers(list_folder(self._folder), layout)

    def _using(self) -> AbstractContextManager[object]:
        return self._guard.use()

    def _counting_put(self, draft: IndexEntry, content: bytes, state: BlobState | None) -> IndexEntry | None:
        """Return the local PUT if a peer brings it once more, or one that it supersedes; else `None`."""
        known = None if state is None or not state.has_content else state.put
        if draft.kind != RecordKind.PUT or state is None or known is None:
            return None
        here: tuple[Any, ...] = (known.op_time_ms,)
        there: tuple[Any, ...] = (draft.op_time_ms,)
        if here == there:
            # Where a TTL update is known, here or there, the PUT may come with its expiry or without.
            if state.is_permanent or draft.flags & RecordFlag.TTL_UPDATED:
                known, draft = known._replace(expires_ms=NO_EXPIRY), draft._replace(expires_ms=NO_EXPIRY)
            here, there = rank_of(known, self._content(self._log.contents, known)), rank_of(draft, content)
        if here == there:
            return state.put
        self._log.events.append(("blobstore_put_twice", {
            "store": self._name, "id": draft.id, "kept_put_at": max(here, there)[0] / 1000,
            "other_put_at": min(here, there)[0] / 1000, "is_here": here > there}))
        return state.put if here > there else None

    def _deliver(self) -> None:
        """Report what has happened under the lock."""
        while self._log.events:
            with contextlib.suppress(IndexError):
                name, fields = self._log.events.pop(0)
                self._observer.event(name, **fields)

    def _count(self, what: str, value: int) -> None:
        if not self._observer.is_deaf:
            self._observer.event(f"blobstore_{what}", add=value, store=self._name)


def compact_many(work: Sequence[StoreWork], *, executor: Executor | None = None, budget: Budget | None = None,
                 observer: Observer | None = None, fence: CommitFence | None = None,
                 ) -> Mapping[str, BlobCompactionReport | CompactlibError]:
    """Compact many stores at once, each as `BlobStore.compact` does it. One store's failure does not stop the others.

    The next step of every store is copied in one run of the executor; each store commits its own.

    Args:
        work: each store and its plan.
        executor: runs the copying; this thread if not given.
        budget: what the work may use up, all stores together.
        observer: notified, besides the stores' own.
        fence: entered around each commit.

    Returns:
        For each store, by its folder, its report, or the error that `compact` would have raised.

    Raises:
        InvalidInput: two plans are for one store, or one is for another store than it is given with.
        Exception: what a policy or a fence has raised that is none of the library's errors.
    """
    if len({store.folder for store, _ in work}) != len(work):
        raise InvalidInput("two plans are for one store; carry out one after the other")
    every = {}
    for store, plan in work:
        if plan is not None:
            require_own(plan, store.name, store._log)
        every[store.folder] = store._compactor.steps(plan, None, budget, observer, fence)
    if not work:
        return {}
    try:
        return run_many(every, local_executor(work[0][0]._log) if executor is None else executor, budget)
    finally:
        for store, _ in work:
            store._deliver()
