# SPDX-License-Identifier: Apache-2.0
"""`BlobStore`: blobs in a segmented log, with time to live, delete and undelete.

Any thread may call any method. Reads never wait for writes: they work on the contents of the log that were current when
they began, and look again if a compaction has removed a file under them. Writes follow each other under one lock.

The class is above 600 lines since it is all that a host sees of a store: two thirds are signatures and what they
promise. The work is done by parts that it holds, `LiveLog` (what the log holds, and each change of it),
`StoreCompactions` (its compactions, one at a time) and `StoreClock` (its time), and by the functions
beside it; here is what joins them: opening and closing, the checks of arguments, and the lock that each write is made
under. What its compactions need of it is `swap.CompactableStore`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from compactlib._closing import Closing
from compactlib.blobstore.compaction.commit.recover import CompactionRecovery
from compactlib.blobstore.compaction.plan.plan import BlobPlan
from compactlib.blobstore.compaction.plan.policy import BlobPolicy, BlobView, check_view
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog
from compactlib.blobstore.compaction.run.compact_many import StoreTask, run_many
from compactlib.blobstore.compaction.run.report import BlobCompactionOutcome, BlobReclaimReport, HardDeleteReport
from compactlib.blobstore.compaction.run.store_compactions import StoreCompactions, require_forecast
from compactlib.blobstore.compaction.run.work import Questions
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import PlanDoesNotFit, StoreFull
from compactlib.blobstore.log.contents import LogSnapshot
from compactlib.blobstore.log.live_log import LiveLog
from compactlib.blobstore.log.load_log import BlobRecoveryReport
from compactlib.blobstore.log.open_store import open_log
from compactlib.blobstore.log.store_clock import StoreClock, last_known_time
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import (
    NO_EXPIRY,
    Answer,
    Blob,
    BlobId,
    BlobInfo,
    Deleted,
    Expired,
    GetOptions,
    IndexEntry,
    Missing,
    RecordFlag,
    RecordKind,
    id_bytes,
    is_a,
    milliseconds,
)
from compactlib.blobstore.segment.reader import SegmentHeader, salt_of
from compactlib.blobstore.store.answer import content_of, judged
from compactlib.blobstore.store.hard_delete import hard_delete, reclaim
from compactlib.blobstore.store.operations import (
    as_successor,
    draft_delete,
    draft_put,
    draft_replicated,
    draft_ttl_update,
    draft_undelete,
    rank_of,
    said_before,
)
from compactlib.blobstore.store.replication import FoundEntries, ReplicationToken, entries_since
from compactlib.blobstore.store.state import BlobState, blob_state
from compactlib.blobstore.store.status import BlobStoreStatus
from compactlib.blobstore.store.verify import verify
from compactlib.clock import Clock, SystemClock
from compactlib.errors import BudgetSpent, Closed, CorruptData, InvalidInput, StorageError
from compactlib.files.disk import Files, LocalFiles, StrPath, local_path
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.report import VerifyReport
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling

if TYPE_CHECKING:
    from compactlib.contract import CommitFence

_PLAIN = GetOptions()
AnswerT = TypeVar("AnswerT")


def _new_incarnation() -> bytes:
    return uuid.uuid4().bytes


class BlobStore(Closing):
    """A store in a folder of its own, open for reading and writing by this process alone.

    Args:
        folder: where its files lie; created (in an existing folder) if it does not exist.
        config: how it is kept. Capacities are used when the store is created and come from the disk afterwards.
        policy: decides what is worth compacting, default `StatsBased()`.
        questions: what a compaction asks its host.
        files: the disk.
        clock: where time comes from. A jump is not accepted at once: see `accept_clock`.
        observer: notified of progress, counters and events.
        name: what it is called in messages; the folder's name if not given.
        create: whether the store may be made. If not, a folder without one is `NotAStore`, and stays as it is.
        new_incarnation: gives a new store its 16 bytes, for tests that need them to repeat.

    Raises:
        Busy: another process or object has it open.
        NotAStore: the folder holds something else; or no store, and `create` is not set.
        InvalidInput: the capacity of a new store is no multiple of its segments'.
        CorruptData: neither the descriptor nor any segment says what the store is, or two generations of a segment
            are there. Other damage is no reason not to open: see `recovery`.
        Unsupported: a format version is newer than this release.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, config: BlobStoreConfig | None = None, *, policy: BlobPolicy | None = None,
                 questions: Questions | None = None, files: Files | None = None, clock: Clock | None = None,
                 observer: Observer | None = None, name: str | None = None, create: bool = True,
                 new_incarnation: Callable[[], bytes] = _new_incarnation) -> None:
        if not is_a(config, BlobStoreConfig, type(None)):
            raise InvalidInput(f"a store is opened by a path and a BlobStoreConfig, not a {type(config).__name__}")
        chosen: BlobPolicy = _default_policy() if policy is None else policy
        asked = Questions() if questions is None else questions
        if not is_a(name, str, type(None)):
            raise InvalidInput(f"the name of a store is text, not {type(name).__name__}")
        self._folder = local_path(folder)
        self._name = name if name is not None else os.path.basename(self._folder)
        self._config = config if config is not None else BlobStoreConfig()
        require_forecast(self._config, chosen)
        self._files: Files = files if files is not None else LocalFiles()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._observer = telling(observer)
        opened = open_log(self._folder, self._config, self._files, self._clock, self._observer, new_incarnation,
                          create=create)
        self._lock_file = opened.lock_file
        self._descriptor = opened.descriptor
        self._recovery = opened.report
        self._compaction_recovery = opened.compaction
        self._log: LiveLog = opened.log
        self._salt = salt_of(self._descriptor.incarnation)
        self._store_clock = StoreClock(self._clock, last_known_time(self._log.contents), self._log.observer)
        self._closed = False
        self._compactions = StoreCompactions(self, chosen, asked, opened.compaction.log)
        self._evicting = threading.Lock()
        try:
            self._log.observer.deliver()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------------- properties

    @property
    def name(self) -> str:
        """What the store is called in messages and events."""
        return self._name

    @property
    def folder(self) -> str:
        """The store's folder, absolute."""
        return self._folder

    @property
    def incarnation(self) -> bytes:
        """16 bytes that are the store's own."""
        return self._descriptor.incarnation

    @property
    def segment_bytes(self) -> int:
        """Capacity of each segment, fixed when the store was created."""
        return self._descriptor.segment_bytes

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the log, fixed when the store was created."""
        return self._descriptor.capacity_bytes

    @property
    def created_at(self) -> float:
        """When the store was created, seconds since the epoch; 0 if that was lost."""
        return self._descriptor.created_ms / 1000

    @property
    def config(self) -> BlobStoreConfig:
        """How it is kept."""
        return self._config

    @property
    def files(self) -> Files:
        """The disk."""
        return self._files

    @property
    def clock(self) -> Clock:
        """The time that compactions and hard deletes use: behind the host's while that is in doubt."""
        return self._store_clock

    @property
    def observer(self) -> Observer:
        """Notified of progress, counters and events."""
        return self._observer

    @property
    def recovery(self) -> BlobRecoveryReport:
        """What opening the store has found out of order."""
        return self._recovery

    @property
    def compaction_recovery(self) -> CompactionRecovery:
        """What opening the store has found of an interrupted compaction, and what it did about it."""
        return self._compaction_recovery

    # -------------------------------------------------------------------------------------------------- operations

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

        def append(log: LiveLog, history: Sequence[IndexEntry]) -> IndexEntry:
            draft = draft_put(key, history, content_bytes=len(held), now_ms=self._now_ms(),
                              ttl_seconds=ttl_seconds, account=account, container=container, replace=replace)
            return log.append(draft, held)

        entry, _ = self._write(key, append)
        return BlobState(entry, entry, entry).info(entry)

    def _write(self, key: bytes, append: Callable[[LiveLog, Sequence[IndexEntry]], IndexEntry],
               ) -> tuple[IndexEntry, BlobState | None]:
        """Append a record of a blob, given its history; where the store evicts, in the room that this makes.

        Returns:
            The record, durable as configured, and the blob's state before it.
        """
        def appended(log: LiveLog) -> tuple[IndexEntry, Sequence[IndexEntry]]:
            history = log.contents.find(key)
            return append(log, history), history

        while True:
            try:
                entry, history = self._change(appended)
            except StoreFull:
                if not self._config.evicts or not self._evict():
                    raise
                continue
            self._log.wait_for(entry)
            return entry, blob_state(history)

    def _evict(self) -> bool:
        """Make room in a full log: an eighth of it, at least one segment. Whoever comes meanwhile waits for that.

        Returns:
            Whether there is room now.
        """
        compactions, total = self._compactions, self._descriptor.log_segments
        if compactions.ownership.is_mine:
            return False
        least = 1
        with self._evicting, self._ended_by_closing():
            while not self.status().free_segments:
                plan = compactions.plan_eviction(max(total // 8, least)) or compactions.plan_eviction(least)
                if plan is None:
                    return False
                try:
                    outcome = self.compact(plan, budget=Budget(clock=self.clock))
                except InvalidInput:
                    # The clock was set back since the plan was made: what it would drop may be undeleted again.
                    continue
                if isinstance(outcome, Failed) and isinstance(outcome.error, StorageError | BudgetSpent):
                    raise outcome.error
                if (isinstance(outcome, Failed) and not isinstance(outcome.error, PlanDoesNotFit)) or (
                        isinstance(outcome, Skipped) and not outcome.is_busy):
                    return False
                if isinstance(outcome, Done) and outcome.stats.freed_segments < 1:
                    # Blobs larger than `max_blob_bytes` need more room than was reckoned with.
                    least = 2 * max(plan.benefit_segments, least)
                compactions.ownership.wait()
        return True

    def get(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> Answer:
        """The blob, or why there is none: `Missing`, `Deleted` or `Expired`. One `pread`.

        Raises:
            CorruptData: the blob is there, but its bytes are not what was written.
            InvalidInput: the id is empty, too long or of another type.
            StorageError: the disk refused.
            Closed: the store is closed.
        """
        key = id_bytes(blob_id)
        while True:
            log = self._opened()
            seen = log.contents
            state = blob_state(seen.find(key))
            found = self._judged(key, state, options)
            if not isinstance(found, IndexEntry):
                return found
            assert state is not None
            try:
                return Blob(state.info(found), self._read(found))
            except (StorageError, CorruptData):
                # A compaction may have removed the file meanwhile, or a hard delete changed the record: then the log
                # says otherwise by now.
                if self._log.contents is seen or self._closed:
                    raise

    def info(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> BlobInfo | Missing | Deleted | Expired:
        """As `get`, but the properties alone: nothing is read from the disk."""
        key = id_bytes(blob_id)
        state = blob_state(self._opened().contents.find(key))
        found = self._judged(key, state, options)
        if not isinstance(found, IndexEntry):
            return found
        assert state is not None
        return state.info(found)

    def delete(self, blob_id: BlobId) -> Deleted:
        """Delete a blob; within the retention it can be undeleted.

        Raises:
            BlobMissing: the id is not known.
            BlobDeleted: it is deleted already.
            StoreFull: no segment is left for the record.
            StorageError: the disk refused; nothing has changed.
        """
        key = id_bytes(blob_id)
        entry, _ = self._write(key, lambda log, history: log.append(
            draft_delete(key, blob_state(history), self._now_ms()), b""))
        return Deleted(key, entry.op_time_ms / 1000, entry.life_version)

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
        retention_ms = milliseconds(self._config.deleted_retention_seconds)
        entry, state = self._write(key, lambda log, history: log.append(
            draft_undelete(key, _lasting(log, history), self._now_ms(), retention_ms), b""))
        assert state is not None
        assert state.put is not None
        return BlobState(entry, entry, state.put).info(state.put)

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
        buffer_ms = milliseconds(self._config.ttl_update_buffer_seconds)
        entry, state = self._write(key, lambda log, history: log.append(
            draft_ttl_update(key, _lasting(log, history), self._now_ms(), buffer_ms), b""))
        assert state is not None
        assert state.put is not None
        return BlobState(entry, state.deciding, state.put).info(state.put)

    def append_replicated(self, kind: RecordKind, blob_id: BlobId, content: bytes = b"", *, op_time: float,
                          life_version: int = 0, expires_at: float | None = None, permanent: bool = False,
                          account: int = 0, container: int = 0) -> IndexEntry:
        """Append a record as a peer has it, unless the same or a later word on its blob is here: then that is answered.

        So a peer may begin again from its first record, as often as it likes: nothing is written twice, no deleted blob
        comes back and no live one goes. Of two records of a blob the one of the later life counts, in one life the
        DELETE; a PUT whose blob is deleted here, and whose content is gone, counts only in a later life. Of two PUTs
        that two replicas have taken without knowing of each other, the later one counts on both, or if they are of one
        time, the one whose account, container, content or expiry is the greater one; the observer is told
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

        def append(log: LiveLog, history: Sequence[IndexEntry]) -> IndexEntry:
            state = _lasting(log, history)
            known = self._counting_put(draft, content, state)
            if known is None:
                known = said_before(draft, state, history)
            if known is None:
                return log.append(draft if state is None else as_successor(draft, state, history), content)
            return known

        return self._write(draft.id, append)[0]

    def entries_since(self, token: ReplicationToken | None = None, *, max_bytes: int | None = None) -> FoundEntries:
        """The blobs that have changed since a token, for a peer that follows this store.

        At most `find_max_entries` records are looked at; ask again with the answer's token until `at_end`. What is told
        is durable: a crash would else give its numbers to other records, which the peer would take for known.

        Raises:
            InvalidInput: a limit is below 1, or something is of another type.
            StorageError: the disk refused a sync.
        """
        snapshot = self.snapshot()
        self.make_durable()
        return entries_since(snapshot, token, max_entries=self._config.find_max_entries, max_bytes=max_bytes)

    # -------------------------------------------------------------------------------------------------- compactions

    @property
    def policy(self) -> BlobPolicy:
        """Decides what is worth compacting, unless a call gives another one."""
        return self._compactions.policy

    @property
    def questions(self) -> Questions:
        """What compactions ask their host. May be replaced; a compaction asks those that were set when it began."""
        return self._compactions.questions

    @questions.setter
    def questions(self, questions: Questions) -> None:
        self._compactions.questions = questions

    @property
    def compaction(self) -> CompactionLog | None:
        """The compaction in progress, as far as it has come, or `None`."""
        return self._compactions.log

    def new_budget(self) -> Budget:
        """A budget of the configured pace: what a compaction is given that is given none."""
        return self._compactions.new_budget()

    def view(self, *, budget: Budget | None = None) -> BlobView:
        """The store as its policy sees it now; see `contract.Compaction`. Reads the index once, or what is new.

        Args:
            budget: asked while everything is counted; closing the store ends the counting as well.

        Raises:
            BudgetSpent: the budget ended before everything was counted.
            StorageError: the file of the last plans cannot be read.
            Closed: the store is closed, or was meanwhile.
        """
        self.require_mine()
        with self._ended_by_closing():
            return self._compactions.view(budget=budget)

    def plan(self, policy: BlobPolicy | None = None, *, view: BlobView | None = None) -> BlobPlan:
        """What `compact` would do; see `contract.Compaction`. An empty plan says which gate is shut.

        Raises:
            InvalidInput: the view is of another store, or the policy made a bad choice.
            StorageError: the disk refused to be asked.
            Closed: the store is closed, or was meanwhile.
            Exception: what the policy raised.
        """
        self._check_policy(policy)
        self.require_mine()
        if view is None:
            with self._ended_by_closing():
                view = self._compactions.view(policy)
        else:
            check_view(view)
            if view.store != self.name or view.incarnation not in (b"", self.incarnation):
                raise InvalidInput(f"the view is of store {view.store!r}, and this is {self.name!r}; plan where it was "
                                   f"made")
        return self._compactions.plan(view, policy, self._compactions.available_bytes())

    def compact(self, plan: BlobPlan | None = None, *, policy: BlobPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> BlobCompactionOutcome:
        """Carry out a plan, by default what the policy chooses now; what was interrupted is finished first.

        Gets and puts go on meanwhile. Memory: 24 bytes a copied record of one cycle, and a few MiB. `compact_many` does
        it for many stores in one run of the executor. See `contract.Compaction` for what is answered when; what an
        executor or a question of the host's raises is reported as `TaskFailed`.

        Args:
            plan: of this store. Not together with `policy`.
            policy: instead of the store's own.
            executor: runs the copying; default this thread.
            budget: what the work may use up; the configured pace if not given. The rate of one that is given counts,
                but for a disk that answers too slowly: then the configured pace holds.
            observer: notified, besides the store's own.
            fence: entered around each commit.

        Raises:
            InvalidInput: plan and policy together; the plan is for another store, or would drop what can still be
                undeleted.
            Closed: the store is closed.
            Exception: what a policy or a fence raised that is none of the library's errors.
        """
        if plan is not None and policy is not None:
            raise InvalidInput("compact() takes a plan or a policy, not both: a plan is what a policy has chosen")
        if not is_a(plan, BlobPlan, type(None)):
            raise InvalidInput(f"the plan is {plan!r:.100}; give what plan() answers, or None")
        self._check_policy(policy)
        return self._run(StoreTask(self, plan, policy), executor=executor, budget=budget, observer=observer,
                         fence=fence)

    def resume(self, *, executor: Executor | None = None, budget: Budget | None = None,
               observer: Observer | None = None, fence: CommitFence | None = None) -> BlobCompactionOutcome:
        """Finish the compaction in progress, and do no more; `Skipped` if there is none. As `compact` otherwise."""
        return self._run(StoreTask(self, only_resume=True), executor=executor, budget=budget, observer=observer,
                         fence=fence)

    def _check_policy(self, policy: BlobPolicy | None) -> None:
        if policy is not None:
            require_forecast(self._config, policy)

    def _run(self, task: StoreTask, **arguments: Any) -> BlobCompactionOutcome:
        self.require_mine()
        return run_many([task], **arguments)[self.folder]

    def drop_compaction(self) -> BlobCompactionOutcome:
        """Give up the compaction in progress; what its earlier cycles did stays, and nothing is lost.

        `Skipped` if there is none, or if the store is busy; `Failed` with `CompactionOutOfOrder` if a commit is under
        way, which can only be finished.

        Raises:
            Closed: the store is closed.
        """
        return self._compactions.drop()

    def reclaim(self, *, budget: Budget | None = None) -> Outcome[BlobReclaimReport]:
        """Remove what interrupted attempts have left.

        Where the store is configured so, the hard delete follows, see `hard_delete`. Every compaction removes the same
        files, and frees the segments that it has replaced; the hard delete belongs to this alone.

        Args:
            budget: what the work may use up. The hard delete has its rate; if it has none, the configured one.

        Raises:
            Closed: the store is closed.
        """
        return reclaim(self, budget, erases=self._config.hard_delete)

    def hard_delete(self, *, budget: Budget | None = None) -> Outcome[HardDeleteReport]:
        """Overwrite the content of every deleted blob whose delete is in effect, where it lies.

        `Skipped` if the store is busy, or a compaction waits to be finished. What was done stays, and the next call
        goes on from there.

        Args:
            budget: what it may use up; the configured rate if not given.

        Raises:
            Closed: the store is closed.
        """
        return hard_delete(self, budget)

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every record, and compare log, index and folder; see `compactlib.blobstore.store.verify`.

        Args:
            budget: asked for the bytes to read, segment by segment; closing the store ends it as well.

        Raises:
            StorageError: the disk refused.
            BudgetSpent: the budget ran out.
            Closed: the store is closed, or was meanwhile.
            Busy: compactions took segments away under it again and again.
        """
        self.require_mine()
        with self._ended_by_closing():
            return verify(self, budget=budget)

    @contextlib.contextmanager
    def _ended_by_closing(self) -> Iterator[None]:
        """A view during the store's closing fails with that reason, and not with a cancelled budget."""
        try:
            yield
        except BudgetSpent as error:
            owner = self._compactions.ownership
            if owner.is_closed or owner.is_ending:
                raise Closed(f"the blob store {self.name} was closed meanwhile; open it again") from error
            raise

    # ------------------------------------------------------------------------- for its compactions (compaction/swap.py)

    @property
    def compactions(self) -> StoreCompactions:
        """Which run may compact it, and what is in progress: one for the store, whichever objects work on it."""
        return self._compactions

    def require_mine(self) -> None:
        """Return if the folder is this store's to change.

        Raises:
            Closed: the store is closed, or this process is a fork of the one that has it open.
        """
        self._opened()
        self._lock_file.require_mine()

    def segment_header(self, name: SegmentName) -> SegmentHeader:
        """The header of a segment of this store with that name, for one that a compaction builds."""
        return self._descriptor.header(_named(name))

    def snapshot(self) -> LogSnapshot:
        """A frozen look at log and index. O(1), takes the lock for a moment."""
        return self._opened().snapshot()

    def make_durable(self) -> None:
        """See `swap.CompactableStore`."""
        log = self._opened()
        self._lock_file.require_mine()
        with log.lock:
            if not log.writer.all_synced:
                log.flush()

    def give_up(self, who: str, is_going: Callable[[IndexEntry], bool] | None) -> None:
        """From now on take the content of these PUTs for gone; see `swap.CompactableStore`."""
        log = self._opened()
        with log.lock:
            if is_going is None:
                log.going.pop(who, None)
            else:
                log.going[who] = is_going

    def swap_segments(self, remove: Sequence[SegmentName], add: Sequence[SegmentName],
                      index_starts: Mapping[SegmentName, Sequence[int]] | None = None) -> None:
        """Answer from the segments `add` instead of `remove`, in one step; see `swap.CompactableStore`.

        Raises:
            PlanDoesNotFit: the segments do not fit the log as it is.
            CorruptData: a segment to add is not readable; nothing was switched.
        """
        gone, new = _all_named(remove), _all_named(add)
        log = self._opened()
        self._lock_file.require_mine()
        loaded = log.load(new, index_starts)
        with log.lock:
            log.swap(gone, loaded)

    def reload_index(self, segment: SegmentName) -> None:
        """Load the index files of a sealed segment again, after a hard delete has changed them.

        Raises:
            PlanDoesNotFit: the segment is unknown or is the active one.
        """
        log = self._opened()
        self._lock_file.require_mine()
        known = log.contents.segment(_named(segment))
        if known is None:
            raise PlanDoesNotFit(f"segment {segment} is not a sealed segment of this store; plan again")
        (loaded,) = log.load([segment], {segment: [index.start for index in known.index]})
        with log.lock:
            log.reload(segment, loaded)

    def close_active_segment(self) -> None:
        """Seal the active segment and begin the next one; does nothing to an empty one.

        Raises:
            StoreFull: no segment is left.
            StorageError: the disk refused.
        """
        def closed(log: LiveLog) -> None:
            if log.contents.open.end > log.contents.active.end or log.contents.active.index:
                log.writer.check()
                log.roll()

        self._change(closed)

    # ------------------------------------------------------------------------------------------ its state, and its end

    def flush(self) -> None:
        """Make everything written durable.

        Raises:
            StorageError: the disk refused; writing has stopped.
        """
        log = self._opened()
        self._lock_file.require_mine()
        log.flush()
        log.observer.deliver()

    @property
    def free_fraction(self) -> float:
        """The part of the log's segments that have not begun; a `CompactionManager` reads it for `LowSpace`."""
        return 1 - len(self._log.contents.segments) / self._descriptor.log_segments

    @property
    def is_managed(self) -> bool:
        """Whether a `CompactionManager` compacts the store, which sets this."""
        return self._log.is_managed

    @is_managed.setter
    def is_managed(self, is_managed: bool) -> None:
        self._log.is_managed = is_managed

    def accept_clock(self) -> None:
        """Accept the host's clock as it stands, although it has jumped, or stepped since the store was used last.

        For an operator who has looked at it. It need not be called: if the clock stays so, it is accepted half a minute
        later.
        """
        self._store_clock.accept()
        self._log.observer.deliver()

    def status(self) -> BlobStoreStatus:
        """Numbers of the store as it is now. Takes the lock for a moment."""
        log = self._opened()
        with log.lock:
            return BlobStoreStatus.of(self._name, log, self._descriptor, self._compactions)

    def audit(self) -> None:
        """Check everything in memory against itself, and the compaction in progress against the disk.

        Raises:
            AuditFailed: something does not agree; the message has the numbers.
        """
        log = self._opened()
        with log.lock:
            log.audit()
        self._compactions.audit()
        self._compactions.sensor.audit()

    def close(self) -> None:
        """Cancel what compacts the store and wait for it, make everything durable, and give the folder up.

        A compaction that was cancelled goes on with the first one after the store is opened again. Closing again does
        nothing. In a fork of the process that opened the store, only the fork's copy is given up.

        Raises:
            Busy: called from within a compaction of the store, on whichever thread: by an observer, a policy, a
                question, a task. Nothing was done.
            StorageError: the disk refused, now or before (`WritesStopped`), and not all is durable; the folder is
                given up all the same.
        """
        if not self._lock_file.is_mine:
            # Closed before; or a fork, in which what is locked or under way in its parent never ends.
            if not self._closed:
                self._closed = True
                self._log.close(is_mine=False)
                self._lock_file.release()
            return
        self._compactions.ownership.close()
        with self._compactions.sensor.side_files, self._log.lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._log.close(is_mine=True)
            finally:
                self._lock_file.release()
        self._log.observer.deliver()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._log.contents.segments)} segments"
        return f"{type(self).__name__}({self._folder!r}, {state})"

    # ---------------------------------------------------------------------------------------------------- internal

    def _judged(self, key: bytes, state: BlobState | None,
                options: GetOptions) -> IndexEntry | Missing | Deleted | Expired:
        found = judged(key, state, options, self._now_ms)
        if state is not None and state.newest.expires_ms >= 0:
            # What the clock had to say.
            self._log.observer.deliver()
        return found

    def _counting_put(self, draft: IndexEntry, content: bytes, state: BlobState | None) -> IndexEntry | None:
        """The PUT that is here, if a peer brings it once more, or another one that it outdoes; else `None`."""
        known = None if state is None or not state.has_content else state.put
        if draft.kind != RecordKind.PUT or state is None or known is None:
            return None
        here: tuple[Any, ...] = (known.op_time_ms,)
        there: tuple[Any, ...] = (draft.op_time_ms,)
        if here == there:
            # Where a TTL update is known, here or there, the PUT may be told with its expiry or without.
            if state.is_permanent or draft.flags & RecordFlag.TTL_UPDATED:
                known, draft = known._replace(expires_ms=NO_EXPIRY), draft._replace(expires_ms=NO_EXPIRY)
            here, there = rank_of(known, self._read(known)), rank_of(draft, content)
        if here == there:
            return state.put
        self._log.observer.event("blobstore_put_twice", {
            "store": self._name, "id": draft.id, "kept_put_at": max(here, there)[0] / 1000,
            "other_put_at": min(here, there)[0] / 1000, "is_here": here > there})
        return state.put if here > there else None

    def _read(self, entry: IndexEntry) -> bytes:
        return content_of(self._log.segments.get(entry.segment, self._log.has), entry, self._salt)

    def _opened(self) -> LiveLog:
        if self._closed:
            raise Closed(f"the blob store {self._name} is closed; open it again")
        if self._lock_file.is_inherited:
            raise self._lock_file.refusal(f"the blob store {self._name}")
        return self._log

    def _change(self, act: Callable[[LiveLog], AnswerT]) -> AnswerT:
        """What `act` answers, which changes the log of the open store, under its lock."""
        log = self._log
        self._lock_file.require_mine()
        try:
            with log.lock:
                return act(self._opened())
        finally:
            log.observer.deliver()

    def _now_ms(self) -> int:
        return milliseconds(self._store_clock.steady())


def _lasting(log: LiveLog, history: Sequence[IndexEntry]) -> BlobState | None:
    """The state of a blob, without a PUT whose content is about to go, on which nothing that is written may rely."""
    state = blob_state(history)
    if state is None or state.put is None or not log.is_going(state.put):
        return state
    return attrs.evolve(state, put=None)


def _default_policy() -> BlobPolicy:
    # A host with a policy of its own need not load the library's.
    from compactlib.blobstore.compaction.plan.policies.stats_based import StatsBased

    return StatsBased()


def _named(name: SegmentName) -> SegmentName:
    if not is_a(name, SegmentName):
        raise InvalidInput(f"{name!r:.100} is no name of a segment; give a SegmentName")
    return name


def _all_named(names: Iterable[SegmentName]) -> list[SegmentName]:
    if not is_a(names, Iterable):
        raise InvalidInput(f"{names!r:.100} are no names of segments; give SegmentNames")
    return [_named(name) for name in names]
