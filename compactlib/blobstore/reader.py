# SPDX-License-Identifier: Apache-2.0
"""`BlobReader`: reading a store's folder, from any process, while its owner writes and compacts.

What is read is one moment: every record that was written as a whole by then, and either all of a compaction's step or
nothing of it. What a crash has left is read as opening the store would leave it: `layout` says which segments count, a
torn tail is left out, contents that were being overwritten are gone, and indexes are made again in memory.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection, Iterator, Mapping

import attrs

from compactlib._closing import Closing
from compactlib.blobstore.blobs import (
    Answer,
    Blob,
    BlobInfo,
    Deleted,
    Expired,
    GetOptions,
    Missing,
    answer_for,
    content_of,
)
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents, LogSegment
from compactlib.blobstore.erasure import pending_erasures
from compactlib.blobstore.errors import NotAStore
from compactlib.blobstore.folder import LoadedSegment, load_lost, load_segment, read_folder
from compactlib.blobstore.log import leftovers
from compactlib.blobstore.names import FIRST_SEGMENT, UNPUBLISHED_SUFFIX, SegmentName
from compactlib.blobstore.plan import BlobPlan, plan_for
from compactlib.blobstore.policies.stats_based import StatsBased
from compactlib.blobstore.records import BlobId, IndexEntry, id_bytes, milliseconds
from compactlib.blobstore.segment import Descriptor, OpenSegments, salt_of
from compactlib.blobstore.segment_list import Layout, lay_out, read_list
from compactlib.blobstore.segment_records import SegmentRecords
from compactlib.blobstore.statistics import all_lifetimes, histories_in, view_of
from compactlib.blobstore.validity import PurgeRules
from compactlib.blobstore.verify import verify_log
from compactlib.blobstore.view import BlobPolicy, BlobView, require_view_of
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Closed, CorruptData, StorageError
from compactlib.files.disk import LocalFiles, StrPath, list_folder, local_path, look_at
from compactlib.report import Finding, Printed, VerifyReport

_PLAIN = GetOptions()
_TRIES = 100
"""How often a read begins again because a compaction has switched files meanwhile."""
_CERTAIN_AFTER = 10
"""After so many tries a segment that is not there is lost, and not just removed."""


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


@attrs.frozen(eq=False)
class _Seen:
    """A store as it was read.

    Attributes:
        descriptor: what the store is.
        contents: its log and index.
        damage: what is not as it was written.
        layout: which segments count.
        loaded: for each segment the state of its files, and what was read of them, for the next read.
    """

    descriptor: Descriptor
    contents: LogContents
    damage: tuple[CorruptData, ...]
    layout: Layout
    loaded: Mapping[SegmentName, tuple[object, LoadedSegment]]


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
        self._now_seen = _read_store(self._folder, None)
        self._salt = salt_of(self.incarnation)
        self._files = OpenSegments(self._folder, self._now_seen.descriptor.header, self._config.max_open_segments)

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
        return self._now_seen.descriptor.incarnation

    @property
    def segment_bytes(self) -> int:
        """Capacity of each segment."""
        return self._now_seen.descriptor.segment_bytes

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the log."""
        return self._now_seen.descriptor.capacity_bytes

    @property
    def damage(self) -> tuple[CorruptData, ...]:
        """What was not as it was written when the folder was read; whatever is not named here is readable."""
        return self._now_seen.damage

    def snapshot(self) -> LogContents:
        """Return log and index as they were seen."""
        return self._seen().contents

    # -- reading

    def refresh(self) -> None:
        """Read the folder again; segments that have not changed since are not read again.

        Raises:
            Closed: the reader is closed.
            CorruptData: it is another store by now.
            NotAStore, Busy, CorruptData, Unsupported, StorageError: as when it was opened.
        """
        with self._refreshing:
            before = self._seen()
            after = _read_store(self._folder, before)
            if after.descriptor.incarnation != before.descriptor.incarnation:
                raise CorruptData(path=self._folder, offset=0, expected=f"store {before.descriptor.incarnation.hex()}",
                                  found=f"{after.descriptor.incarnation.hex()}, another store; open a reader of it")
            self._now_seen = after
        self._files.forget(before.loaded.keys() - after.loaded.keys())

    def get(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> Answer:
        """Return the blob, or why there is none: `Missing`, `Deleted` or `Expired`. One `pread`.

        Raises:
            CorruptData: the blob is there, but its bytes are not what was written.
            InvalidInput: the id is empty or too long.
            StorageError: the disk refused.
            Closed: the reader is closed.
        """
        key = id_bytes(blob_id)
        failed: IndexEntry | None = None
        for _ in range(_TRIES):
            contents = self._seen().contents
            found = answer_for(key, contents.find(key), options, self._now_ms)
            if not isinstance(found, tuple):
                return found
            info, put = found
            try:
                return Blob(info, content_of(self._files.get(put.segment, contents.has), put, self._salt))
            except (StorageError, CorruptData):
                # A compaction may have removed the file meanwhile, or a hard delete changed the record: then the log
                # says otherwise by now.
                if put == failed:
                    raise
                failed = put
            self.refresh()
        raise CorruptData(path=self._folder, offset=0, expected=f"a segment that holds blob {key!r}",
                          found=f"another one each of {_TRIES} times")

    def info(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> BlobInfo | Missing | Deleted | Expired:
        """As `get`, but the properties alone: nothing is read from the disk."""
        key = id_bytes(blob_id)
        found = answer_for(key, self._seen().contents.find(key), options, self._now_ms)
        return found[0] if isinstance(found, tuple) else found

    def infos(self, options: GetOptions = _PLAIN) -> Iterator[BlobInfo]:
        """Yield the properties of every blob that `get` would answer with its content; in no particular order.

        Uses what was seen when it began, whatever is refreshed meanwhile. Memory is bounded, however many they are.

        Raises:
            Closed: the reader is closed.
        """
        return self._infos(self.snapshot(), options)

    def _infos(self, contents: LogContents, options: GetOptions) -> Iterator[BlobInfo]:
        for history in histories_in(contents.all_parts):
            self._seen()
            found = answer_for(history[0].id, history, options, self._now_ms)
            if isinstance(found, tuple):
                yield found[0]

    def records(self, *, reference_time: float, now: float) -> list[SegmentRecords]:
        """Return all records that the store holds, dead ones included, by segment, oldest first.

        Nothing of the contents is read yet. A few microseconds a record, and some 60 bytes of memory meanwhile.

        Args:
            reference_time: deletes made strictly before it are in effect; seconds since the epoch.
            now: blobs that expire strictly before it have expired; seconds since the epoch.

        Raises:
            Closed: the reader is closed.
        """
        seen = self._seen()
        reference_ms, now_ms = milliseconds(reference_time), milliseconds(now)
        kept: dict[SegmentName, set[int]] = {segment.name: set() for segment in seen.contents.segments}
        for life in all_lifetimes(seen.contents, PurgeRules(), Budget().check):
            if life.is_kept(reference_ms, now_ms):
                kept[life.segment].add(life.offset)
        return [SegmentRecords.of(self._folder, segment.name, seen.descriptor,
                                  bytes(entry.offset in kept[segment.name] for entry in segment.entries()), segment.end)
                for segment in seen.contents.segments if segment.records and not segment.is_lost]

    # -- plans and checks

    def view(self, *, budget: Budget | None = None) -> BlobView:
        """Return the store as a policy sees it now, from what was last read. Reads the index once, in memory.

        Nothing is known of the owner's journal: every segment but the newest counts as eligible.

        Args:
            budget: asked while everything is counted.

        Raises:
            BudgetSpent: the budget refused.
            Closed: the reader is closed.
        """
        return self._view(self._policy, Budget() if budget is None else budget)

    def _view(self, policy: BlobPolicy, budget: Budget) -> BlobView:
        seen = self._seen()
        budget.check()
        return view_of(seen.contents, name=self._name, descriptor=seen.descriptor, config=self._config,
                       policy=policy, now=self._clock.now(), damaged={},
                       eligible=seen.contents.eligible(0, seen.descriptor.log_segments),
                       last_full_ms=seen.layout.list.last_full_ms,
                       rules=PurgeRules(purge_tombstones=self._config.purge_tombstones), check=budget.check)

    def plan(self, policy: BlobPolicy | None = None, *, view: BlobView | None = None) -> BlobPlan:
        """Return what a compaction would do: a dry run from outside. The owner's `compact` takes the plan, if it is not
        outdated by then.

        Raises:
            InvalidInput: the view is of another store, or the policy made a bad choice.
            StorageError: the room on the disk cannot be read.
            Closed: the reader is closed.
            Exception: what the policy raised.
        """
        chosen = self._policy if policy is None else policy
        self._seen()
        if view is None:
            view = self._view(chosen, Budget())
        else:
            require_view_of(view, self._name, self.incarnation)
        return plan_for(view, chosen, self._clock.now(), bytes_available=LocalFiles().available_bytes(self._folder))

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
        for _ in range(_TRIES):
            self.refresh()
            seen = self._seen()
            left = self._left_over(seen)
            report = verify_log(self._folder, seen.contents, self._is_there, left, limit)
            if report is not None and left == self._left_over(seen):
                damage = tuple(Finding("damage", f"{error.path}:{error.offset}", str(error), error)
                               for error in seen.damage)
                return attrs.evolve(report, findings=(*damage, *report.findings))
        raise Busy(f"compactions of the store in {self._folder} have taken segments away from the verifier {_TRIES} "
                   f"times; verify again when none is running")

    def _is_there(self, name: SegmentName) -> bool:
        found = read_list(self._folder).list
        return found is None or name in found.segments

    def _left_over(self, seen: _Seen) -> list[str]:
        """Return names that nothing needs; of what a compaction makes now, the list says nothing yet."""
        names = leftovers(list_folder(self._folder), seen.layout)
        return [] if any(name.endswith(UNPUBLISHED_SUFFIX) for name in names) else names

    def status(self) -> ReaderStatus:
        """Return the store in numbers, as it was seen.

        Raises:
            Closed: the reader is closed.
        """
        seen = self._seen()
        return ReaderStatus(
            name=self._name, capacity_bytes=self.capacity_bytes, damage=len(seen.damage),
            used_bytes=seen.contents.used_bytes(self.segment_bytes), segments=len(seen.contents.segments),
            records=sum(segment.records for segment in seen.contents.segments))

    def audit(self) -> None:
        """Check what is in memory against its own rules.

        Raises:
            AuditFailed: something does not agree; the message has the numbers.
            Closed: the reader is closed.
        """
        self._seen().contents.audit()

    def close(self) -> None:
        """Let all files go; closing again does nothing."""
        self._closed = True
        self._files.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._now_seen.contents.segments)} segments"
        return f"<BlobReader of {self._folder!r}: {state}>"

    def _seen(self) -> _Seen:
        if self._closed:
            raise Closed(f"the reader of the blob store in {self._folder} is closed; open another one")
        return self._now_seen

    def _now_ms(self) -> int:
        return milliseconds(self._clock.now())


def _read_store(folder: str, before: _Seen | None) -> _Seen:
    """Read the index of a store, and of its log what is not in the index. See `BlobReader` for the errors.

    Args:
        folder: the store's, absolute.
        before: an earlier read: segments whose files have not changed since are not read again.
    """
    if not os.path.isdir(folder):
        raise NotAStore(f"{folder} is no folder; give that of a blob store", path=folder)
    for number in range(_TRIES):
        try:
            found = _try_to_read(folder, before, is_certain=number >= _CERTAIN_AFTER)
        except StorageError as error:
            # A file that was listed is gone: a compaction has removed it.
            if error.errno != errno.ENOENT or number == _TRIES - 1:
                raise
            continue
        if found is not None:
            return found
    raise Busy(f"compactions of the store in {folder} switched files {_TRIES} times while it was read; read it again")


def _try_to_read(folder: str, before: _Seen | None, *, is_certain: bool) -> _Seen | None:
    """Try once; `None` if files were switched meanwhile."""
    found = read_folder(folder)
    layout = lay_out(folder, found.listed, found.present)
    if (layout.lost or layout.damage) and not is_certain:
        # A step may have been committed between the list and the folder.
        return None
    descriptor = found.descriptor
    if descriptor is None:
        raise NotAStore(f"{folder} holds no blob store: neither its descriptor nor a segment can be read", path=folder)
    erased = pending_erasures(folder, descriptor.incarnation)
    known = before.loaded if before is not None and before.descriptor == descriptor else {}
    newest = max((*layout.segments, *layout.lost), default=None)
    loaded = {name: _loaded(folder, name, descriptor, name == newest, frozenset(erased.get(name, ())), known)
              for name in layout.segments}
    after = read_list(folder).list
    if (None if after is None else after.step) != (None if found.listed.list is None else found.listed.list.step):
        return None
    segments = [*(each.segment for _, each in loaded.values()),
                *(load_lost(folder, name, descriptor).segment for name in layout.lost)]
    contents = LogContents.of(descriptor.incarnation, segments or [LogSegment(FIRST_SEGMENT)],
                              None if before is None else before.contents.directory)
    damage = (*found.damage, *layout.damage, *(error for _, each in loaded.values() for error in each.damage))
    return _Seen(descriptor, contents, damage, layout, loaded)


def _loaded(folder: str, name: SegmentName, descriptor: Descriptor, is_active: bool, erased: Collection[int],
            known: Mapping[SegmentName, tuple[object, LoadedSegment]]) -> tuple[object, LoadedSegment]:
    """Return a segment with the state of its files, read again if that has changed."""
    found = [look_at(os.path.join(folder, file)) for file in (name.log_file, name.index_file)]
    state = is_active, erased, *((each.st_ino, each.st_size, each.st_mtime_ns) for each in found if each is not None)
    if name in known and known[name][0] == state:
        return known[name]
    return state, load_segment(folder, name, descriptor, is_active=is_active, erased=erased)
