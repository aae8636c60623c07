# SPDX-License-Identifier: Apache-2.0
"""`Reading`: the calls that `BlobStore` and `BlobReader` share, over the current contents of the log.

Reads never wait for writes. A compaction may remove a file during a read, and a hard delete may change a record. So a
read that fails is repeated on newer contents, once for each place of the record.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

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
from compactlib.blobstore.contents import LogContents, histories_in
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import BlobPlan, plan_for
from compactlib.blobstore.policies import StatsBased
from compactlib.blobstore.records import BlobId, IndexEntry, id_bytes, milliseconds
from compactlib.blobstore.scan import verify_segment
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, Descriptor, OpenSegments
from compactlib.blobstore.view import BlobPolicy, BlobView
from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.files.disk import Files
from compactlib.observer import Observers
from compactlib.report import Finding, VerifyReport

_PLAIN = GetOptions()


class Reading(Closing):
    """Reads blobs, views, plans and verifies. Each call raises `Closed` after the close, and `StorageError` if the disk
    refused.

    Attributes:
        folder: the store's folder, absolute.
        name: the store's name in messages, plans and events; default the folder's name.
        config: the settings; of a reader, its own argument.
        policy: chooses the segments to compact, unless a call gives another policy; default `StatsBased()`.
        clock: the source of time; of a store, a step of the host's clock counts only once it is confirmed.
        incarnation: the store's 16 bytes, different in each store.
    """

    def __init__(self, folder: str, name: str | None, config: BlobStoreConfig, policy: BlobPolicy | None, files: Files,
                 clock: Clock, descriptor: Descriptor, segments: OpenSegments, observer: Observers) -> None:
        self.folder: str = folder
        self.name: str = os.path.basename(folder) if name is None else name
        self.config: BlobStoreConfig = config
        self.policy: BlobPolicy = StatsBased() if policy is None else policy
        self.clock: Clock = clock
        self.incarnation: bytes = descriptor.incarnation
        self._files = files
        self._descriptor = descriptor
        self._segments = segments
        self._observer = observer

    # -- blobs

    def get(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> Answer:
        """Return the blob; or `Missing`, `Deleted` or `Expired`, which are false. One `pread`.

        Raises:
            CorruptData: the blob's record is damaged, or its segment is lost.
            InvalidInput: the id is empty or too long.
        """
        key = id_bytes(blob_id)
        with self._using():
            found = self._answer(key, options)
        self._count("hits" if isinstance(found, Blob) else "misses", 1)
        return found

    def info(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> BlobInfo | Missing | Deleted | Expired:
        """Return the properties of a blob, as `get` without its content. Reads nothing from the disk."""
        key = id_bytes(blob_id)
        found = answer_for(key, self._contents().find(key), options, self._now_ms)
        return found[0] if isinstance(found, tuple) else found

    def __contains__(self, blob_id: BlobId) -> bool:
        """Whether a blob of this id is live."""
        return isinstance(self.info(blob_id), BlobInfo)

    def keys(self) -> Iterator[bytes]:
        """Yield the ids of all blobs that are live at the call, in no particular order.

        Reads the whole index in bounded memory.
        """
        return self._keys(self._contents().frozen(), self._now_ms())

    def _keys(self, contents: LogContents, now_ms: int) -> Iterator[bytes]:
        for history in histories_in(contents.all_parts):
            if isinstance(answer_for(history[0].id, history, _PLAIN, lambda: now_ms), tuple):
                self._contents()
                yield history[0].id

    def __len__(self) -> int:
        """Return how many blobs are live. Reads the whole index."""
        return sum(1 for _ in self.keys())

    def __bool__(self) -> bool:
        return True

    # -- plans and checks

    def view(self, *, budget: Budget | None = None) -> BlobView:
        """Return the store as its policy sees it. Reads the index once, in memory.

        In the view of a `BlobReader` every segment but the newest is eligible: a reader does not know the owner's
        journal.

        Args:
            budget: checked during the count; `BudgetSpent` if it ends before the count does.
        """
        return self._view_for(self.policy, Budget() if budget is None else budget)

    def plan(self, policy: BlobPolicy | None = None, *, view: BlobView | None = None) -> BlobPlan:
        """Return the plan of a compaction: victims, cost, benefit and reason. An empty plan names the shut gate.

        The owner's `compact` accepts a plan of a `BlobReader`, too, as long as the log still has its victims.

        Raises:
            InvalidInput: the view is of another store, or the policy made a bad choice.
            Exception: any other exception of the policy.
        """
        chosen = self.policy if policy is None else policy
        self._contents()
        if view is None:
            view = self._view_for(chosen, Budget())
        elif view.store != self.name or view.incarnation not in (b"", self.incarnation):
            raise InvalidInput(f"the view is of store {view.store!r}, and this is {self.name!r}; plan where it was "
                               f"made")
        return plan_for(view, chosen, self.clock.now(), bytes_available=self._files.available_bytes(self.folder))

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every record, compare log, index and folder, and list damage, missing files and leftovers.

        A reader refreshes first. Memory: one index entry a record of a segment.

        Args:
            budget: spends the bytes of each segment before it is read; `BudgetSpent` if it ends.
        """
        limit = Budget() if budget is None else budget
        damage, left = self._out_of_order()
        findings = [Finding("damage", f"{error.path}:{error.offset}", str(error), error) for error in damage]
        read: dict[SegmentName, tuple[int, int]] = {}
        while missed := [each for each in self._newest().segments if each.name not in read]:
            for segment in missed:
                limit.spend(0 if segment.is_lost else segment.end - SEGMENT_HEADER_BYTES)
                found = verify_segment(self.folder, segment, self._descriptor)
                if found and not self._newest().has(segment.name):
                    break  # a compaction has removed the segment: its outputs are read instead
                findings += found
                read[segment.name] = (0, 0) if segment.is_lost else (segment.records, segment.end)
        # What is left over before and after is of no compaction that ran in the meantime.
        findings += [Finding("leftover", name, "no segment of the log, and no compaction runs")
                     for name in left if name in self._out_of_order()[1]]
        records, size = map(sum, zip(*read.values(), strict=True))
        return VerifyReport(tuple(findings), records, size)

    def audit(self) -> None:
        """Check the invariants of the contents in memory. `AuditFailed`: one does not hold."""
        self._contents().audit()

    def _answer(self, key: bytes, options: GetOptions) -> Answer:
        failed: IndexEntry | None = None
        while True:
            contents = self._contents()
            found = answer_for(key, contents.find(key), options, self._now_ms)
            if not isinstance(found, tuple):
                return found
            info, put = found
            try:
                return Blob(info, self._content(contents, put))
            except (StorageError, CorruptData):
                if put == failed:
                    raise
                failed = put
                self._newest()

    def _now_ms(self) -> int:
        return milliseconds(self.clock.now())

    # -- implemented by the store and by the reader

    @abc.abstractmethod
    def _contents(self) -> LogContents:
        """Return the current contents; raise `Closed` if the store is closed."""

    @abc.abstractmethod
    def _newest(self) -> LogContents:
        """Return frozen contents, not older than the call."""

    @abc.abstractmethod
    def _view_for(self, policy: BlobPolicy, budget: Budget) -> BlobView:
        """Return the store as a policy sees it."""

    @abc.abstractmethod
    def _out_of_order(self) -> tuple[list[CorruptData], list[str]]:
        """Return the damage that opening or reading the folder found, and the names of leftover files."""

    def _using(self) -> AbstractContextManager[object]:
        """Return a context in which files stay open."""
        return nullcontext()

    def _has(self, name: SegmentName) -> bool:
        """Whether a segment is in the log now."""
        return self._contents().has(name)

    def _count(self, what: str, value: int) -> None:
        if not self._observer.is_deaf:
            self._observer.event(f"blobstore_{what}", add=value, store=self.name)

    def _content(self, contents: LogContents, put: IndexEntry) -> bytes:
        segment = contents.segment(put.segment)
        if segment is not None and segment.is_lost:
            raise CorruptData(path=os.path.join(self.folder, put.segment.log_file), offset=put.offset,
                              index=put.sequence, expected=f"the record of blob {put.id!r}", found="no such file")
        return content_of(self._segments.get(put.segment, self._has), put, self._descriptor.salt, put.flags)
