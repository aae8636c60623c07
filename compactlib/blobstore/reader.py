# SPDX-License-Identifier: Apache-2.0
"""`BlobReader`: reading a store's folder, from any process, while its owner writes and compacts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

import attrs

from compactlib._closing import Closing
from compactlib.blobstore.answer import content_of, judged
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogSnapshot
from compactlib.blobstore.index_segment import IndexSegment
from compactlib.blobstore.log import leftovers
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.open_segments import OpenSegments
from compactlib.blobstore.plan import BlobPlan, plan_for
from compactlib.blobstore.policies.stats_based import StatsBased
from compactlib.blobstore.segment import salt_of
from compactlib.blobstore.segment_list import read_list
from compactlib.blobstore.segment_records import SegmentRecords
from compactlib.blobstore.state import blob_state
from compactlib.blobstore.statistics import slices_by_hash, view_of
from compactlib.blobstore.stored import TRIES, StoredLog, read_store
from compactlib.blobstore.validity import PurgeRules
from compactlib.blobstore.values import (
    Answer,
    Blob,
    BlobId,
    BlobInfo,
    Deleted,
    Expired,
    GetOptions,
    IndexEntry,
    Missing,
    id_bytes,
    milliseconds,
)
from compactlib.blobstore.verify import verify_log
from compactlib.blobstore.view import BlobPolicy, BlobView, require_view_of
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Closed, CorruptData, MissingDependency, StorageError
from compactlib.files.disk import LocalFiles, StrPath, list_folder, local_path
from compactlib.report import Finding, Printed, VerifyReport

_PLAIN = GetOptions()


@attrs.frozen(kw_only=True, repr=False)
class ReaderStatus(Printed):
    """A store in numbers, as a reader last saw it.

    Attributes:
        name: the store's.
        capacity_bytes: capacity of the log.
        used_bytes: used capacity: whole segments before the newest one, and that one up to its end.
        segments: how many log segments are in use.
        records: index entries in all.
        damage: how many findings there were when the folder was read; `BlobReader.damage` names them.
        is_busy: false: a reader does not see what its owner does.
        last_error: empty: a reader has no threads.
        failures: 0.
    """

    name: str
    capacity_bytes: int
    used_bytes: int
    segments: int
    records: int
    damage: int
    is_busy: bool = False
    last_error: str = ""
    failures: int = 0

    def _summary(self) -> str:
        return (f"blob store {self.name}, read: {self.used_bytes:,} of {self.capacity_bytes:,} bytes used in "
                f"{self.segments} segments, {self.records:,} records")


class BlobReader(Closing):
    """A store's folder, open for reading: no lock is taken, nothing on the disk is changed, not even a torn tail, and
    another process may be writing and compacting. Threads may share one.

    It sees the store as it was when opened: every record that was written as a whole by then, also one whose sync was
    still under way. `refresh` reads again. Segments that a compaction removes can be read as long as they are open
    here; where one is gone, the reader refreshes itself.

    A store that was killed is read as opening it would leave it.

    Args:
        folder: the store's.
        config: how its owner keeps it: plans and views use its retention, its `max_blob_bytes` and so on. Capacities
            come from the disk.
        policy: what `plan` asks; default `StatsBased()`.
        clock: where time comes from: decides what has expired.
        name: what it is called in plans; the folder's name, as the owner does by default.

    Raises:
        NotAStore: the folder holds no store.
        Busy: compactions switched files again and again meanwhile.
        CorruptData: neither the descriptor nor any segment says what the store is, its segments are gone, or two
            generations of one are there and nothing says which counts. Other damage is no reason not to open: see
            `damage`.
        Unsupported: a later release wrote it.
        StorageError: it cannot be read.
        InvalidInput: an argument is of another type.
    """

    def __init__(self, folder: StrPath, config: BlobStoreConfig | None = None, *, policy: BlobPolicy | None = None,
                 clock: Clock | None = None, name: str | None = None) -> None:
        self._policy: BlobPolicy = StatsBased() if policy is None else policy
        self._clock: Clock = SystemClock() if clock is None else clock
        self._folder = local_path(folder)
        self._name = os.path.basename(self._folder) if name is None else name
        self._config = BlobStoreConfig() if config is None else config
        self._refreshing = threading.Lock()
        self._closed = False
        self._stored = read_store(self._folder)
        self._salt = salt_of(self._stored.descriptor.incarnation)
        self._files = OpenSegments(self._folder, self._stored.descriptor.header, self._config.max_open_segments)

    # ------------------------------------------------------------------------------------------------- properties

    @property
    def folder(self) -> str:
        """The store's folder, absolute."""
        return self._folder

    @property
    def name(self) -> str:
        """What the store is called in plans."""
        return self._name

    @property
    def config(self) -> BlobStoreConfig:
        """How its owner keeps it, as far as this reader knows."""
        return self._config

    @property
    def incarnation(self) -> bytes:
        """16 bytes that are the store's own."""
        return self._stored.descriptor.incarnation

    @property
    def segment_bytes(self) -> int:
        """Capacity of each segment."""
        return self._stored.descriptor.segment_bytes

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the log."""
        return self._stored.descriptor.capacity_bytes

    @property
    def damage(self) -> tuple[CorruptData, ...]:
        """What was not as it was written when the folder was read; whatever is not named here is readable."""
        return self._stored.damage

    def snapshot(self) -> LogSnapshot:
        """Log and index as they were seen; every segment but the newest counts as eligible."""
        return self._opened().snapshot

    # ------------------------------------------------------------------------------------------------------ reading

    def refresh(self) -> None:
        """Read the folder again; segments that have not changed since are not read again.

        Raises:
            Closed: the reader is closed.
            CorruptData: it is another store by now.
            NotAStore, Busy, CorruptData, Unsupported, StorageError: as when it was opened.
        """
        with self._refreshing:
            before = self._opened()
            after = read_store(self._folder, before)
            if after.descriptor.incarnation != before.descriptor.incarnation:
                raise CorruptData(path=self._folder, offset=0, expected=f"store {before.descriptor.incarnation.hex()}",
                                  found=f"{after.descriptor.incarnation.hex()}, another store; open a reader of it")
            self._stored = after
        self._files.forget({info.name for info in before.snapshot.segments}
                           - {info.name for info in after.snapshot.segments})

    def get(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> Answer:
        """The blob, or why there is none: `Missing`, `Deleted` or `Expired`. One `pread`.

        Raises:
            CorruptData: the blob is there, but its bytes are not what was written.
            InvalidInput: the id is empty, too long or of another type, or the options are none.
            StorageError: the disk refused.
            Closed: the reader is closed.
        """
        key = id_bytes(blob_id)
        failed: IndexEntry | None = None
        for _ in range(TRIES):
            state = blob_state(self._opened().snapshot.contents.find(key))
            found = judged(key, state, options, self._now_ms)
            if not isinstance(found, IndexEntry):
                return found
            assert state is not None
            try:
                file = self._files.get(found.segment, self._stored.snapshot.has)
                return Blob(state.info(found), content_of(file, found, self._salt))
            except (StorageError, CorruptData):
                # A compaction may have removed the file meanwhile, or a hard delete changed the record: then the log
                # says otherwise by now.
                if found == failed:
                    raise
                failed = found
            self.refresh()
        raise CorruptData(path=self._folder, offset=0, expected=f"a segment that holds blob {key!r}",
                          found=f"another one each of {TRIES} times")

    def info(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> BlobInfo | Missing | Deleted | Expired:
        """As `get`, but the properties alone: nothing is read from the disk."""
        key = id_bytes(blob_id)
        state = blob_state(self._opened().snapshot.contents.find(key))
        found = judged(key, state, options, self._now_ms)
        if not isinstance(found, IndexEntry):
            return found
        assert state is not None
        return state.info(found)

    def infos(self, options: GetOptions = _PLAIN) -> Iterator[BlobInfo]:
        """The properties of every blob that `get` would answer with its content; in no particular order.

        Uses what was seen when it began, whatever is refreshed meanwhile. Memory is bounded, however many they are.

        Raises:
            Closed: the reader is closed.
        """
        return self._infos(self.snapshot().index_parts(), options)

    def _infos(self, parts: Sequence[IndexSegment], options: GetOptions) -> Iterator[BlobInfo]:
        for alone, histories in slices_by_hash(parts):
            for history in [*([parts[part].columns.entry(row)] for part, row in alone), *histories]:
                self._opened()
                state = blob_state(history)
                found = judged(history[0].id, state, options, self._now_ms)
                if isinstance(found, IndexEntry) and state is not None:
                    yield state.info(found)

    def records(self, *, reference_time: float, now: float) -> list[SegmentRecords]:
        """All records that the store holds, dead ones included, by segment, oldest first; needs NumPy.

        Nothing of the contents is read yet. O(n log n) for n records, some 100 bytes of memory a record meanwhile.

        Args:
            reference_time: deletes made strictly before it are in effect; seconds since the epoch.
            now: blobs that expire strictly before it have expired; seconds since the epoch.

        Raises:
            MissingDependency: NumPy is not installed.
            Closed: the reader is closed.
        """
        try:
            from compactlib.blobstore.kept_records import kept_records
        except ImportError:
            raise MissingDependency(package="numpy", extra="fast", purpose="judging all records of a store") from None
        stored = self._opened()
        kept = kept_records(stored.snapshot, reference_time, now)
        return [SegmentRecords.of(self._folder, info.name, stored.descriptor, bytes(kept[info.name]), info.end)
                for info in stored.snapshot.segments if info.records and info.name not in stored.layout.lost]

    # ------------------------------------------------------------------------------------------- plans and checks

    def view(self, *, budget: Budget | None = None) -> BlobView:
        """The store as a policy sees it now, from what was last read. Reads the index once, in memory.

        Nothing is known of the owner's journal: every segment but the newest counts as eligible.

        Args:
            budget: asked while everything is counted.

        Raises:
            BudgetSpent: the budget refused.
            Closed: the reader is closed.
        """
        return self._view(self._policy, budget)

    def _view(self, policy: BlobPolicy, budget: Budget | None = None) -> BlobView:
        stored = self._opened()
        if budget is not None:
            budget.check()
        return view_of(stored.snapshot, name=self._name, descriptor=stored.descriptor, config=self._config,
                       policy=policy, now=self._clock.now(), damaged={}, last_full_ms=stored.last_full_ms,
                       rules=PurgeRules(purge_tombstones=self._config.purge_tombstones),
                       check=(budget or Budget()).check)

    def plan(self, policy: BlobPolicy | None = None, *, view: BlobView | None = None) -> BlobPlan:
        """What a compaction would do: a dry run from outside. The owner's `compact` takes the plan, if it is not
        outdated by then.

        Raises:
            InvalidInput: the view is of another store, or the policy made a bad choice.
            StorageError: the room on the disk cannot be read.
            Closed: the reader is closed.
            Exception: what the policy raised.
        """
        chosen = self._policy if policy is None else policy
        self._opened()
        if view is not None:
            require_view_of(view, self._name, self.incarnation)
        return plan_for(self._view(chosen) if view is None else view, chosen, self._clock.now(),
                        bytes_available=LocalFiles().available_bytes(self._folder))

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every record, compare log and index, and list what is damaged or missing, and what is left over.

        Reads the index anew first. Where a compaction takes segments away meanwhile, it begins again.

        Args:
            budget: asked for the bytes to read, segment by segment.

        Raises:
            BudgetSpent: the budget refused.
            Busy: compactions took segments away under it again and again; verify when none is running.
            NotAStore, Busy, CorruptData, Unsupported, StorageError: as for `refresh`.
            Closed: the reader is closed.
        """
        limit = Budget() if budget is None else budget
        for _ in range(TRIES):
            self.refresh()
            stored = self._opened()
            left = self._left_over(stored)
            report = verify_log(self._folder, stored.snapshot, self._is_there, left, limit)
            if report is not None and left == self._left_over(stored):
                damage = tuple(Finding("damage", f"{error.path}:{error.offset}", str(error), error)
                               for error in stored.damage)
                return attrs.evolve(report, findings=(*damage, *report.findings))
        raise Busy(f"compactions of the store in {self._folder} have taken segments away from the verifier {TRIES} "
                   f"times; verify again when none is running")

    def _is_there(self, name: SegmentName) -> bool:
        found = read_list(self._folder).list
        return found is None or name in found.segments

    def _left_over(self, stored: StoredLog) -> list[str]:
        """Return names that nothing needs; of what a compaction makes now, the list says nothing yet."""
        names = leftovers(list_folder(self._folder), stored.layout)
        return [] if any(name.endswith(".temp") for name in names) else names

    def status(self) -> ReaderStatus:
        """The store in numbers, as it was seen.

        Raises:
            Closed: the reader is closed.
        """
        stored = self._opened()
        segments = stored.snapshot.segments
        return ReaderStatus(
            name=self._name, capacity_bytes=self.capacity_bytes, used_bytes=stored.snapshot.used_bytes,
            segments=len(segments), records=sum(info.records for info in segments), damage=len(stored.damage))

    def audit(self) -> None:
        """Check what is in memory against its own rules.

        Raises:
            AuditFailed: something does not agree; the message has the numbers.
            Closed: the reader is closed.
        """
        self._opened().snapshot.contents.audit()

    # ------------------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Let all files go; closing again does nothing."""
        self._closed = True
        self._files.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._stored.snapshot.segments)} segments"
        return f"<BlobReader of {self._folder!r}: {state}>"

    def _opened(self) -> StoredLog:
        if self._closed:
            raise Closed(f"the reader of the blob store in {self._folder} is closed; open another one")
        return self._stored

    def _now_ms(self) -> int:
        return milliseconds(self._clock.now())
