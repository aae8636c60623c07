"""`BlobStore`: blobs in a segmented log, with time to live, delete and undelete.

Any thread may call any method. Reads never wait for writes: they work on the state of the log that was current when
they began, and look again if a compaction has removed a file under them. Writes follow each other under one lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs

from compactlib.arguments import require_method, require_policy
from compactlib.blobstore.compaction.plan.plan import CompactionPlan
from compactlib.blobstore.compaction.plan.policy import Policy, StoreView, check_view
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog
from compactlib.blobstore.compaction.run.compact_many import StoreTask, run_many
from compactlib.blobstore.compaction.run.report import BlobCompactionOutcome, HardDeleteReport, ReclaimReport
from compactlib.blobstore.compaction.run.store_compactions import require_forecast
from compactlib.blobstore.compaction.run.work import Questions, require_questions
from compactlib.blobstore.errors import BlobExists
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
from compactlib.blobstore.segment.records import content_range
from compactlib.blobstore.store.answer import content_of, judged
from compactlib.blobstore.store.hard_delete import HardDeleter
from compactlib.blobstore.store.operations import draft_delete, draft_of, draft_put, draft_ttl_update, draft_undelete
from compactlib.blobstore.store.replication import FoundEntries, ReplicationToken, entries_since
from compactlib.blobstore.store.state import BlobState, blob_state
from compactlib.blobstore.store.store_log import StoreLog
from compactlib.blobstore.store.stream import read_stream
from compactlib.blobstore.store.verify import verify
from compactlib.errors import BudgetSpent, Closed, CompactlibError, CorruptData, InvalidInput, StorageError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.report import VerifyReport
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer

if TYPE_CHECKING:
    from compactlib.contract import CommitFence

_PLAIN = GetOptions()


class BlobStore(StoreLog):
    """A store in a folder of its own, open for reading and writing by this process alone.

    Args:
        folder: where its files lie; created (in an existing folder) if it does not exist.
        config: how it is kept. Capacities are used when the store is created and come from the disk afterwards.
        policy: decides what is worth compacting, default `StatsBased()`.
        questions: what a compaction asks its host.
        files: the disk.
        clock: where time comes from. What jumps is not believed at once: see `accept_clock`.
        observer: told of progress, counters and events.
        name: what it is called in messages; the folder's name if not given.
        new_incarnation: gives a new store its 16 bytes, for tests that need them to repeat.

    Raises:
        Busy: another process or object has it open.
        NotAStore: the folder holds something else.
        InvalidInput: the capacity of a new store is no multiple of its segments'.
        CorruptData: neither the descriptor nor any segment says what the store is, or two generations of a segment
            are there. Other damage is no reason not to open: see `recovery`.
        Unsupported: a format version is newer than this release.
        StorageError: the disk refused.
    """

    # -------------------------------------------------------------------------------------------------- operations

    def put(self, blob_id: BlobId, content: bytes | bytearray | memoryview | BinaryIO, *,
            ttl_seconds: float | None = None, size: int | None = None, account: int = 0,
            container: int = 0) -> BlobInfo:
        """Store a blob under an id that was never used.

        Args:
            blob_id: 1 to 1024 bytes.
            content: the bytes, or a file open for reading. A stream of more than 8 MiB is copied while other writers
                wait, so that memory stays bounded.
            ttl_seconds: how long it lives; strictly after that it is expired. `None` for no end.
            size: how many bytes the stream has; needed for one of more than 8 MiB.
            account: account number.
            container: container number.

        Raises:
            BlobExists: the id is known, deleted and expired blobs included.
            BlobTooLarge: it does not fit into a segment.
            InvalidInput: the id, the time to live or another argument is out of its range, or the stream has another
                size than was said.
            StoreFull: no segment is left.
            StorageError: the disk refused; the blob is not stored.
        """
        key = id_bytes(blob_id)
        pieces = read_stream(content, size)
        with self._writing() as log:
            draft = draft_put(key, blob_state(log.state.find(key)), content_bytes=pieces.size,
                              now_ms=self._now_ms(), ttl_seconds=ttl_seconds, account=account, container=container)
            entry = log.append(draft, pieces.head) if pieces.rest is None else log.append_pieces(draft, pieces.all())
        log.wait_for(entry)
        return BlobState(entry, entry, entry).info(entry)

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
            seen = log.state
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
                if self._log.state is seen or self._closed:
                    raise

    def info(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> BlobInfo | Missing | Deleted | Expired:
        """As `get`, but the properties alone: nothing is read from the disk."""
        key = id_bytes(blob_id)
        state = blob_state(self._opened().state.find(key))
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
        with self._writing() as log:
            entry = log.append(draft_delete(key, blob_state(log.state.find(key)), self._now_ms()), b"")
        log.wait_for(entry)
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
        with self._writing() as log:
            state = blob_state(log.state.find(key))
            entry = log.append(draft_undelete(key, state, self._now_ms(), retention_ms), b"")
        log.wait_for(entry)
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
        with self._writing() as log:
            state = blob_state(log.state.find(key))
            entry = log.append(draft_ttl_update(key, state, self._now_ms(), buffer_ms), b"")
        log.wait_for(entry)
        assert state is not None
        assert state.put is not None
        return BlobState(entry, state.deciding, state.put).info(state.put)

    def append_replicated(self, kind: RecordKind, blob_id: BlobId, content: bytes = b"", *, op_time: float,
                          life_version: int = 0, expires_at: float | None = None, permanent: bool = False,
                          account: int = 0, container: int = 0) -> IndexEntry:
        """Append a record as a peer has it, whatever the blob's state here; what it is to mean is the host's concern.

        A PUT that is here already is not written again: the answer is the entry of the one that is.

        Raises:
            InvalidInput: a field is out of its range, or a record other than a PUT has content.
            BlobExists: a PUT of this id is here that is not the same; a blob has one.
            CorruptData: a PUT of this id is here, and is damaged.
            BlobTooLarge: it does not fit into a segment.
            StoreFull: no segment is left.
            StorageError: the disk refused.
        """
        try:
            kind = RecordKind(kind)
        except ValueError:
            raise InvalidInput(f"{kind!r} is no kind of record; give one of RecordKind") from None
        if not isinstance(content, bytes):
            raise InvalidInput(f"the content of a replicated record is bytes, not {type(content).__name__}")
        if expires_at is not None and milliseconds(expires_at) < 0:
            raise InvalidInput(f"the expiry is {expires_at}; give seconds since the epoch, or None for never")
        if content and kind != RecordKind.PUT:
            raise InvalidInput(f"a {kind.name} has no content, and this one has {len(content)} bytes")
        expires_ms = NO_EXPIRY if expires_at is None else milliseconds(expires_at)
        flags = RecordFlag.TTL_UPDATED if permanent or kind == RecordKind.TTL_UPDATE else RecordFlag.NONE
        draft = draft_of(id_bytes(blob_id), kind, content_bytes=len(content), flags=flags, life_version=life_version,
                         op_time_ms=milliseconds(op_time), expires_ms=expires_ms, account=account, container=container)
        with self._writing() as log:
            known = blob_state(log.state.find(draft.id)) if kind == RecordKind.PUT else None
            if known is not None and known.put is not None:
                entry = self._same_put(known.put, draft, content)
            else:
                entry = log.append(draft, content)
        log.wait_for(entry)
        return entry

    def entries_since(self, token: ReplicationToken | None = None, *, max_bytes: int | None = None) -> FoundEntries:
        """The blobs that have changed since a token, for a peer that follows this store.

        At most `find_max_entries` records are looked at; ask again with the answer's token until `at_end`.
        """
        return entries_since(self.snapshot(), token, max_entries=self._config.find_max_entries, max_bytes=max_bytes)

    # -------------------------------------------------------------------------------------------------- compactions

    @property
    def policy(self) -> Policy:
        """Decides what is worth compacting, unless a call gives another one."""
        return self._compactions.policy

    @property
    def questions(self) -> Questions:
        """What compactions ask their host. May be replaced; a compaction asks those that were set when it began."""
        return self._compactions.questions

    @questions.setter
    def questions(self, questions: Questions) -> None:
        require_questions(questions)
        self._compactions.questions = questions

    @property
    def compaction(self) -> CompactionLog | None:
        """The compaction in progress, as far as it has come, or `None`."""
        return self._compactions.log

    def new_budget(self) -> Budget:
        """A budget of the configured pace: what a compaction is given that is given none."""
        return self._compactions.new_budget()

    def view(self, *, budget: Budget | None = None) -> StoreView:
        """The store as its policy sees it now; see `contract.Compaction`. Reads the index once, or what is new.

        Args:
            budget: asked while everything is counted; closing the store ends the counting as well.

        Raises:
            BudgetSpent: the budget ended before everything was counted.
            StorageError: the file of the last plans cannot be read.
            Closed: the store is closed, or was meanwhile.
        """
        require_method("budget", budget, "lend", or_none=True)
        self.require_mine()
        with self._ended_by_closing():
            return self._compactions.view(budget=budget)

    def plan(self, policy: Policy | None = None, *, view: StoreView | None = None) -> CompactionPlan:
        """What `compact` would do; see `contract.Compaction`. An empty plan says which gate is shut.

        Raises:
            InvalidInput: the view is of another store, or the policy made a bad choice.
            StorageError: the disk refused to be asked.
            Closed: the store is closed, or was meanwhile.
            Exception: what the policy raised.
        """
        self._check_policy(policy)
        self.require_mine()
        compactions = self._compactions
        if view is None:
            with self._ended_by_closing():
                view = compactions.view(policy)
            return compactions.plan(view, policy, compactions.available_bytes())
        check_view(view)
        if view.store != self.name or view.incarnation not in (b"", self.incarnation):
            raise InvalidInput(f"the view is of store {view.store!r}, and this is {self.name!r}; plan where it was "
                               f"made")
        return compactions.plan(view, policy, compactions.available_bytes())

    def compact(self, plan: CompactionPlan | None = None, *, policy: Policy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> BlobCompactionOutcome:
        """Carry out a plan, by default what the policy chooses now; what was interrupted is finished first.

        Gets and puts go on meanwhile. Memory: 24 bytes a copied record of one cycle, and a few MiB. `compact_many` does
        it for many stores in one run of the executor. See `contract.Compaction` for what is answered when; what an
        executor or a question of the host's raises is told as `TaskFailed`.

        Args:
            plan: of this store. Not together with `policy`.
            policy: instead of the store's own.
            executor: who copies; default this thread.
            budget: what the work may use up; the configured pace if not given. The rate of one that is given counts,
                but for a disk that answers too slowly: then the configured pace holds.
            observer: is told, besides the store's own.
            fence: entered around each commit.

        Raises:
            InvalidInput: plan and policy together; the plan is for another store, or would drop what can still be
                undeleted.
            Closed: the store is closed.
            Exception: what a policy or a fence raised that is none of the library's errors.
        """
        if plan is not None and policy is not None:
            raise InvalidInput("compact() takes a plan or a policy, not both: a plan is what a policy has chosen")
        if not is_a(plan, CompactionPlan, type(None)):
            raise InvalidInput(f"the plan is {plan!r:.100}; give what plan() answers, or None")
        self._check_policy(policy)
        return self._run(StoreTask(self, plan, policy), executor=executor, budget=budget, observer=observer,
                         fence=fence)

    def resume(self, *, executor: Executor | None = None, budget: Budget | None = None,
               observer: Observer | None = None, fence: CommitFence | None = None) -> BlobCompactionOutcome:
        """Finish the compaction in progress, and do no more; `Skipped` if there is none. As `compact` otherwise."""
        return self._run(StoreTask(self, only_resume=True), executor=executor, budget=budget, observer=observer,
                         fence=fence)

    def _check_policy(self, policy: Policy | None) -> None:
        if policy is not None:
            require_policy("policy", policy)
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

    def reclaim(self, *, budget: Budget | None = None) -> Outcome[ReclaimReport]:
        """Remove what interrupted attempts have left, and logs of compactions older than `compaction_history_seconds`.

        Where the store is configured so, the hard delete follows, see `hard_delete`. Every compaction removes the same
        files, and frees the segments that it has replaced; the hard delete belongs to this alone.

        Args:
            budget: what the work may use up; but the rate of the hard delete is the configured one.

        Raises:
            Closed: the store is closed.
        """
        require_method("budget", budget, "lend", or_none=True)
        with self._compactions.running(budget) as run:
            if run is None:
                return self._compactions.busy()
            try:
                run.budget.check()
                removed, freed = self._compactions.reclaim()
            except CompactlibError as error:
                return Failed(error)
        erased: HardDeleteReport | None = None
        if self._config.hard_delete:
            limit = Budget(clock=self._clock) if budget is None else budget
            own = limit.beside(attrs.evolve(
                limit.remaining, bytes_per_second=self._config.hard_delete_bytes_per_second))
            outcome = self.hard_delete(budget=own)
            limit.charge(own.spent_bytes)
            match outcome:
                case Done(stats):
                    erased = stats
                case Failed():
                    return attrs.evolve(outcome, changed="partly") if removed else outcome
                case Skipped() if not removed:
                    return outcome
        if not removed and (erased is None or not erased.records):
            waits = "" if erased is None else ", and no delete came into effect since the last time"
            return Skipped(f"store {self.name} has nothing to reclaim: no attempt has left a file, no log of a "
                           f"compaction is older than compaction_history_seconds="
                           f"{self._config.compaction_history_seconds}{waits}")
        return Done(ReclaimReport(store=self.name, removed=removed, bytes_freed=freed, erased=erased))

    def hard_delete(self, *, budget: Budget | None = None) -> Outcome[HardDeleteReport]:
        """Overwrite the content of every deleted blob whose delete is in effect, where it lies.

        `Skipped` if the store is busy, or a compaction waits to be finished. What was done stays, and the next call
        goes on from there.

        Args:
            budget: what it may use up; the configured rate if not given.

        Raises:
            Closed: the store is closed.
        """
        require_method("budget", budget, "lend", or_none=True)
        self.require_mine()
        try:
            return HardDeleter(self).run(budget=budget)
        except CompactlibError as error:
            # How far it has come cannot be read.
            return Failed(error)

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
        require_method("budget", budget, "lend", or_none=True)
        self.require_mine()
        with self._ended_by_closing():
            return verify(self, budget=budget)

    @contextlib.contextmanager
    def _ended_by_closing(self) -> Iterator[None]:
        """Who looks on while the store is closed is told so, and not that somebody has cancelled their budget."""
        try:
            yield
        except BudgetSpent as error:
            owner = self._compactions.ownership
            if owner.is_closed or owner.is_ending:
                raise Closed(f"the blob store {self.name} was closed meanwhile; open it again") from error
            raise

    # ---------------------------------------------------------------------------------------------------- internal

    def _judged(self, key: bytes, state: BlobState | None,
                options: GetOptions) -> IndexEntry | Missing | Deleted | Expired:
        found = judged(key, state, options, self._now_ms)
        if state is not None and state.newest.expires_ms >= 0:
            # What the clock had to say.
            self._log.observer.deliver()
        return found

    def _same_put(self, known: IndexEntry, draft: IndexEntry, content: bytes) -> IndexEntry:
        """The PUT that is here, if it is the one that a peer brings once more."""
        erased = bool(known.flags & RecordFlag.ERASED)
        same = (known.size, known.op_time_ms, known.expires_ms, known.account, known.container) == (
            draft.size, draft.op_time_ms, draft.expires_ms, draft.account, draft.container)
        if not same or not (erased or self._read(known) == content):
            raise BlobExists(f"blob {draft.id!r} was put at {known.op_time_ms / 1000:.3f} with "
                             f"{content_range(known)[1]} bytes, and this is another PUT of the same id, of "
                             f"{draft.op_time_ms / 1000:.3f} with {len(content)} bytes; a blob has one", id=draft.id)
        return known

    def _read(self, entry: IndexEntry) -> bytes:
        return content_of(self._log.segments.get(entry.segment), entry, self._salt)
