# SPDX-License-Identifier: Apache-2.0
"""The tail of a log that is open for writing: appending entries, syncing them, and truncating them."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING

from compactlib.errors import AuditFailed, Busy, CompactlibError, StorageError
from compactlib.files.disk import Files
from compactlib.files.folder_lock import FolderLock
from compactlib.raftlog.compaction.run import Compactor
from compactlib.raftlog.log.folder import read_folder
from compactlib.raftlog.log.newest import NewestSegment
from compactlib.raftlog.model.values import MAX_INDEX, Entry
from compactlib.raftlog.segment.known import KnownSegment
from compactlib.raftlog.segment.segment_set import SegmentSet
from compactlib.runtime.owned_lock import OwnedLock

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BEYOND = MAX_INDEX + 1


class LogTail:
    """Appends to the newest segment, and keeps the list of segments and the files of older ones in step with it.

    Threads may share it: what changes something takes `switch`, where it does not say that the caller holds it.

    Args:
        files: the disk.
        segments: the log's segments; the newest is put in as it grows.
        newest: the segment that is written to.
        lock: of the log's folder.
        switch: held while the list of segments is changed, and by every thread that makes files in the folder.
        compactor: removes the files of segments of which nothing counts any more.
        require_open: raises `Closed` when nothing more may be written.
    """

    def __init__(self, files: Files, segments: SegmentSet, newest: NewestSegment, lock: FolderLock,
                 switch: OwnedLock, compactor: Compactor, require_open: Callable[[], object]) -> None:
        self.switch: OwnedLock = switch
        self.segments: SegmentSet = segments
        # Of which nothing is known before it is recovered from an error.
        self.newest: NewestSegment = newest
        # From here on the newest segment answers; not before the list does.
        self.newest_first: int = _BEYOND
        self.older_last: int = -1
        self.is_closed: bool = False
        self.require_open: Callable[[], object] = require_open
        self._files = files
        self._lock = lock
        self._compactor = compactor
        self._to_discard: list[int] = []
        self._to_remove: list[int] = []
        self._overwrite_unsynced = False
        self._must_recover = False
        # The threads that have appended what is not synced yet.
        self._appenders: set[int] = set()
        # Why entries were lost: for each thread that has appended some and was not told, and (`None`), until all of
        # these were, for the first other one that comes; see `require_kept`.
        self.untold: dict[int | None, BaseException] = {}
        # Who needs to be told no more.
        self._told: set[int] = set()

    @property
    def must_remove_older(self) -> bool:
        """Whether an earlier `remove_older` was refused, and files are left that would count again."""
        return bool(self._to_remove)

    @property
    def durable_index(self) -> int:
        """The last entry that is durable for sure, -1 if none is."""
        durable = self.newest.durable_index
        return self.older_last if durable is None else durable

    def settled(self) -> KnownSegment | None:
        """What the newest segment holds now, `None` if nothing; recovered first, after an error. `switch` is held.

        Raises:
            StorageError: that is not possible now; call again.
        """
        self._recover_newest()
        return self.newest.known()

    def put(self, index: int, term: int, payload: Buffer) -> None:
        """Append an entry, whatever the snapshot says; `switch` is held. See `SegmentLog.append`."""
        if self._must_recover:
            self._recover_newest()
        try:
            self._make_room()
            self.newest.append(index, term, payload)
            self._appenders.add(get_ident())
            if index < self.newest_first:
                self._began_at(index)
        except BaseException as error:
            self.lose_unsynced(error)
            raise

    def _make_room(self) -> None:
        ended = self.newest.make_room()
        if ended is not None:
            self._appenders.clear()
            self.segments.put(ended)
            self.older_last, self.newest_first = ended.ref.last, _BEYOND

    def _began_at(self, index: int) -> None:
        """The newest segment begins with `index` from now on."""
        if index > self.older_last:
            self.newest_first = index
            return
        newest = self.newest.known()
        assert newest is not None, "an entry was just appended"
        # The files of covered segments may go only once the entries that cover them are durable.
        self._to_discard.extend(self.segments.put(newest))
        self._overwrite_unsynced = True
        self.note()

    def put_run(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Append entries of consecutive indexes; with few calls where they fit.

        Raises:
            StorageError, Closed: as `SegmentLog.append`.
        """
        with self.switch:
            self.require_open()
            self._recover_newest()
            done = 0
            while done < len(payloads):
                index = first + done
                try:
                    self._make_room()
                    done += self.newest.append_run(index, term, payloads[done:] if done else payloads)
                    self._appenders.add(get_ident())
                    if index < self.newest_first:
                        self._began_at(index)
                except BaseException as error:
                    self.lose_unsynced(error)
                    raise

    def begin_successor(self) -> None:
        """Begin the next segment although the newest is not full.

        Raises:
            StorageError, Closed: as `SegmentLog.append`.
        """
        with self.switch:
            self.require_open()
            self._recover_newest()
            try:
                ended = self.newest.begin_next()
                if ended is not None:
                    self.segments.put(ended)
                self.note()
            except BaseException as error:
                self.lose_unsynced(error)
                raise

    def remove_older(self) -> None:
        """Begin a new segment, and remove all the others durably.

        Raises:
            StorageError: the disk refused; call again.
            Busy: a reader still uses them; call again.
        """
        with self.switch:
            if self.settled() is not None or not self.newest.takes_entries:
                self.begin_successor()
            folder = self.segments.folder
            numbers = [ref.number for ref in self.segments.refs if ref.number != self.newest.number]
            self._to_remove = sorted({*self._to_remove, *numbers})
            self.segments.drop(numbers)
            self.note()
            # Before all, what these cover. Then newest first: whatever a crash leaves is a beginning of the log, of
            # which the WAL says what to do again.
            self._compactor.discard(self._to_discard)
            self._to_discard = []
            doomed = self._compactor.doomed
            self._compactor.discard([number for number in reversed(self._to_remove) if number not in doomed],
                                    one_by_one=True)
            self._compactor.reclaim()
            doomed = self._compactor.doomed
            self._to_remove = [number for number in self._to_remove if number in doomed]
            if self._to_remove:
                raise Busy(f"segments {self._to_remove} in {folder} hold only what was taken back, but are being read; "
                           f"release the leases and call again")

    def sync(self, *, untold: bool = False) -> None:
        """Make every entry appended so far durable; see `SegmentLog.sync`.

        Args:
            untold: whether the caller is another one than who appended them.
        """
        with self.switch:
            self.require_open()
            self._recover_newest()
            try:
                self.newest.sync()
            except BaseException as error:
                self.lose_unsynced(error, untold=untold)
                raise
            self._appenders.clear()
            self._overwrite_unsynced = False
            if self._to_discard:
                self._compactor.discard(self._to_discard)
                self._to_discard = []
                # The entries are durable; what the disk refuses to remove is tried again by the next compaction.
                with contextlib.suppress(StorageError):
                    self._compactor.reclaim()

    def lose_unsynced(self, error: BaseException, *, untold: bool = False) -> None:
        """After a `StorageError`, or an interrupt that may have come anywhere: go on from what is durable, now or (if
        that is refused too) with the next call. The library's other errors are refusals, and have changed nothing.

        Args:
            error: what was raised.
            untold: whether the caller is another one than who appended the entries. `require_kept` tells those whom
                this error does not.
        """
        if isinstance(error, CompactlibError) and not isinstance(error, StorageError):
            return
        with self.switch:
            told = set() if untold else {get_ident()}
            concerned = self._appenders - told
            if self.newest.unsynced_entries and (untold or concerned):
                self.untold.update(dict.fromkeys((None, *concerned), error))
                self._told = told
            self._appenders.clear()
            self._must_recover = True
            with contextlib.suppress(CompactlibError):
                self._recover_newest()

    def require_kept(self) -> None:
        """Return unless entries were lost in another's call, some of them this thread's.

        The first of the other threads is told too, unless all of those were before: it may go on from these entries,
        or take them for durable.

        Raises:
            StorageError: they were; says why. Not said again.
        """
        thread = get_ident()
        lost = self.untold.pop(thread, None)
        if lost is None and thread not in self._told:
            lost = self.untold.pop(None, None)
        if lost is None:
            return
        self._told.add(thread)
        if self.untold.keys() == {None}:
            self.untold.clear()
        kind, number, why = (type(lost), lost.errno, lost.detail) if isinstance(lost, StorageError) else (
            StorageError, None, repr(lost))
        raise kind(operation="write", path=self.newest.path, errno=number or errno.EINTR,
                   detail=f"{why}, in a call of another's, and the entries that were not synced are lost") from lost

    def _recover_newest(self) -> None:
        if not self._must_recover:
            return
        self._lock.require_mine()
        self.newest.recover()
        # Asked first: a compaction that removes them now would have removed them by the time the folder was read.
        doomed = self._compactor.doomed
        known = read_folder(self.segments.folder).known
        self.segments.reset(segment for segment in known if segment.ref.number not in doomed)
        self._to_discard = list(self.segments.covered)
        self._must_recover = self._overwrite_unsynced = False
        self.note()

    def note(self, covered: Sequence[int] = ()) -> None:
        """Follow a change of the list. While the newest segment is not recovered nothing is known of it.

        Args:
            covered: segments that are not listed because newer ones cover them.
        """
        # The files of covered segments may go only once the entries that cover them are durable.
        if self._overwrite_unsynced:
            self._to_discard.extend(covered)
        else:
            self._compactor.discard(covered)
        if self._must_recover:
            return
        newest = self.newest.known()
        if newest is not None:
            self.segments.put(newest)
        self.older_last, self.newest_first = self._ends()

    def _ends(self) -> tuple[int, int]:
        """The last index of the older segments (-1 if none), and the first of the one that is written to."""
        newest, refs = self.newest.known(), self.segments.refs
        if newest is None:
            return (refs[-1].last if refs else -1), _BEYOND
        return (refs[-2].last if len(refs) > 1 else -1), newest.ref.first

    def publish(self) -> None:
        """Let the list of segments, and readers that open the newest one, see what was appended last.

        Raises:
            StorageError: the disk refused; entries that were not synced are lost.
        """
        with self.switch:
            self._recover_newest()
            newest = self.newest.known()
            if newest is None or self.is_closed:
                return
            self._lock.require_mine()
            try:
                self.newest.flush()
            except BaseException as error:
                self.lose_unsynced(error, untold=True)
                raise
            number = self.newest.number
            outdated = self.segments.open_entries(number) not in (-1, newest.entries)
            if outdated or self.segments.known_of(number) != newest:
                self.segments.put(newest)

    def durable_list(self) -> tuple[KnownSegment, ...]:
        """The segments as a compaction may rely on them: no range was cut by entries that a crash may take back.

        What those cut off is needed then, although it lies outside of every range and above the snapshot.
        """
        with self.switch:
            if self._overwrite_unsynced:
                self.sync(untold=True)
            # A disk too full to go on with the newest segment must not keep a compaction, which never touches that one,
            # from making room.
            with contextlib.suppress(StorageError):
                self.publish()
            return self.segments.known()

    def read(self, index: int) -> Entry | None:
        """The entry of `index` from the newest segment, `None` if that does not hold it; `switch` is held."""
        try:
            return self.newest.read(index)
        except BaseException as error:
            self.lose_unsynced(error, untold=True)
            raise

    def audit(self) -> None:
        """Check the list, and what is remembered of the newest segment.

        Raises:
            AuditFailed: one is broken; says which, with the numbers.
        """
        with self.switch:
            self.require_open()
            self.publish()
            self.segments.audit()
            found, wanted = (self.older_last, self.newest_first), self._ends()
            if found != wanted:
                raise AuditFailed(f"(end of the older segments, start of the newest) is {found}, expected {wanted}")

    def abandon(self) -> bool:
        """In a fork of the owner: give up the files without another write; whether they were not closed before."""
        if self.is_closed:
            return False
        self.is_closed = True
        self.newest.abandon()
        return True
