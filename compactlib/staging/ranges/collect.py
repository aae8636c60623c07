# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of range and metarange files, and what keeps it and the writers apart: both halves.

    (absent) --written--> young --grace period--> old --no live metarange needs it--> doomed --deleted--> (absent)
                            ^                      ^                                     |
                            |                      +---- spared: used or needed again ---+
                            +---- an old or doomed file that is used again counts as young: its mark does

A file is kept if a live metarange needs it, if it is younger than the grace period, or if a metarange younger than that
needs it. Files are never rewritten, so the age of one that is used AGAIN does not show it. Therefore:

- *The collection* first writes a doom mark for each file it wants to delete; then lists the writers' marks of reuse,
  and looks once more what is live and how old each file is; and only then deletes what is still unneeded; last it takes
  the doom marks away.
- *A writer* (`RangeFiles.mark_reuse`, `confirm`) leaves a mark of reuse for each file that it found there; and when all
  its files are there, lists the doom marks, and last looks whether all its files still are there.
- *A caller that uses a metarange again* that nothing names any more does the same with it alone (`claim`): a mark of
  reuse of a metarange stands for its ranges too, and a collection deletes metaranges before ranges.

If the writer's mark came before the collection's listing, that sees it. If it came later, the writer sees the doom
mark, and gives way with `BeingCollected`; or, if the doom mark is gone already, sees that the file is gone. The same
holds for a file that one collection deleted, a writer wrote anew, and another collection had seen in its old age:
either that sees its youth, or the writer sees the doom. Marks have names of their own, so collections may run at once;
but the other one may have deleted the new file, and taken its mark away, before the writer looks. So after dooming a
collection lists the doom marks, too: what another one dooms it leaves alone, as if it was marked as reused, and it
deletes nothing that is not there when it looks again.
A collection that died leaves doom marks, which turn writers away until they are older than the grace period; so a
collection must end within it.

Ages alone do not protect a writer that stands still for longer than the grace period (a suspended machine), nor one
whose files a clock that went wrong makes old:

- a writer looks last whether its files are there, those that it has written itself too;
- a metarange that appears between the two looks of a collection is needed, whatever its age;
- `live` is asked for the second time once the files are doomed. It then makes sure that no branch record can be
  changed by a caller that read it before (see `BranchStore.fence`), so that it reads again, and looks again at what it
  has made;
- "now" is the earlier one of the caller's clock and of that of the object store, which dates the files;
- a doom mark that lies far in the future (the object store's clock went wrong, and the collection died) gets a second
  mark beside it, and both go once that one is old.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.objects import ObjectExists, ObjectNotFound
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound
from compactlib.staging.ranges.files import DOOMED, INCOMING, METARANGES, RANGES, REUSED, RangeFiles
from compactlib.staging.ranges.rows import check_id
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.values import Collected, LiveMetaRanges, MetaRangeId, StoredFile

_FOLDERS: Final = (METARANGES, RANGES)
"""In the order of deletion: never a metarange without its ranges."""
_SEEN: Final = ".seen"
"""Behind the name of a doom mark that lies in the future: the mark of when it was seen first."""
_NOW: Final = "now"
"""In place of an id in the name of a doom mark: written to see what the time is."""
_FILES_AT_ONCE: Final = 1000
_MAX_SKEW_SECONDS: Final = 3600.0
"""Marks that lie further in the future were made by a clock gone wrong."""

_Files: TypeAlias = list[tuple[str, StoredFile]]
"""With the folder of each."""


# -------------------------------------------------------------------------------------------------- the writers' half


def confirm(files: RangeFiles, written: Iterable[str]) -> None:
    """Make sure that no collection takes away what was written or used again, once all of it is; given their keys.

    One listing, and one request for each file.

    Raises:
        BeingCollected: one of them is about to be deleted, or has just been.
    """
    doomed = _doomed(files)
    for path in written:
        id_ = path.rpartition("/")[2]
        if id_ in doomed or not files.is_there(path):
            raise BeingCollected(id=id_)


def claim(files: RangeFiles, metarange_id: MetaRangeId) -> None:
    """Keep a metarange and its ranges from collections for their grace period. Three requests.

    One mark stands for all of it: a collection that finds it spares the ranges too. The metarange is what a collection
    dooms and deletes first, so if it is neither doomed nor gone, its ranges are not.

    Raises:
        MetaRangeNotFound: its file is missing.
        BeingCollected: it is about to be deleted, or has just been.
        InvalidInput: this is no id.
    """
    check_id(metarange_id)
    files.mark_reuse(metarange_id)
    if metarange_id in _doomed(files):
        raise BeingCollected(id=metarange_id)
    path = files.path_of_metarange(metarange_id)
    if not files.is_there(path):
        raise MetaRangeNotFound(metarange_id=metarange_id, path=path)


def _doomed(files: RangeFiles, besides: Collection[str] = ()) -> set[str]:
    """The ids of files that have doom marks, but for those with these keys."""
    return {mark.id.partition(".")[0] for mark in files.list(DOOMED) if files.prefix + DOOMED + mark.id not in besides}


# ------------------------------------------------------------------------------------------------- the collector's half


class RangeCollector:
    """One collection; its arguments are those of `CommittedRanges.collect`. The clock must agree with the object
    store's well within the grace period, which is > 0 while there are writers.
    """

    def __init__(self, files: RangeFiles, clock: Clock, live: Callable[[], LiveMetaRanges], grace_seconds: float,
                 budget: Budget, require_owner: Callable[[], object]) -> None:
        if not grace_seconds >= 0:
            raise InvalidInput(f"grace_seconds is {grace_seconds}; give 0 or more")
        self._files = files
        self._clock = clock
        self._live = live
        self._grace_seconds = grace_seconds
        self._budget = budget
        self._require_owner = require_owner
        self._now = self._stored_now = 0.0

    def run(self) -> Collected:
        """Delete files that are not needed. Two listings of everything, and one request for each live metarange not
        cached.

        Raises:
            MetaRangeNotFound, DamagedRange: a live metarange cannot be read; nothing is deleted.
            ObjectStoreFailed, StorageError: the store denies deletes, say; then no mark is left either.
        """
        self._see_the_time()
        for folder in (INCOMING, REUSED):
            self._files.objects.delete([self._files.prefix + folder + mark.id for mark in self._files.list(folder)
                                        if not self._is_young(mark)])
        self._remove_old_dooms()
        needed, files, gone = self._look()
        unneeded = [(folder, file) for folder, file in files if file.id not in needed]
        doomed = {file.id for _, file in unneeded if not self._is_young(file)}
        marks = [self._files.path_of_doom(id_, self._files.new_name()) for id_ in doomed]
        try:
            for mark in marks:
                self._files.objects.create(mark, b"")
            deleted = self._delete(doomed, {file.id for _, file in files}, marks) if doomed else []
        finally:
            self._take_away(marks)
        freed = _bytes_of(deleted)
        return Collected(
            metaranges_deleted=sum(folder == METARANGES for folder, _ in deleted),
            ranges_deleted=sum(folder == RANGES for folder, _ in deleted),
            bytes_freed=freed, live=len(files) - len(unneeded), live_bytes=_bytes_of(files) - _bytes_of(unneeded),
            young=len(unneeded) - len(deleted), young_bytes=_bytes_of(unneeded) - freed, gone=gone)

    def _see_the_time(self) -> None:
        """See what the time is where files are dated, from a mark that is dated now."""
        mark = self._files.path_of_doom(_NOW, self._files.new_name())
        # Marks that could not be taken away again would turn writers away: so a delete comes first, of nothing.
        self._files.objects.delete([mark])
        self._files.objects.create(mark, b"")
        try:
            self._stored_now = self._files.objects.info(mark).modified_at
        except ObjectNotFound:
            # It stood still until another collection took the mark for an old one.
            self._see_the_time()
            return
        self._files.objects.delete([mark])
        self._now = min(self._clock.now(), self._stored_now)

    def _take_away(self, marks: list[str]) -> None:
        """Remove the doom marks. Each one that stays turns writers away, so one that cannot be removed stops none."""
        failed: CompactlibError | None = None
        with contextlib.suppress(CompactlibError):
            self._files.objects.delete(marks)
            return
        for mark in marks:
            try:
                self._files.objects.delete([mark])
            except CompactlibError as error:
                failed = error
        if failed is not None:
            raise failed

    def _delete(self, doomed: set[str], known: set[str], marks: list[str]) -> _Files:
        used = self._reused() | _doomed(self._files, set(marks))
        again, files, _ = self._look()
        metaranges = {file.id for folder, file in files if folder == METARANGES}
        needed = used | again | {file.id for _, file in files if self._is_young(file)}
        needed.update(self._parts_if_there((metaranges & used) | (metaranges - known)))
        # Of those that are there now: what another collection has taken may be written anew at any moment.
        deleted = [(folder, file) for folder, file in files if file.id in doomed and file.id not in needed]
        for folder in _FOLDERS:
            # No request for files of both: it may fail for some of its files, or be lost for them in a crash.
            part = [file.id for each, file in deleted if each == folder]
            for at in range(0, len(part), _FILES_AT_ONCE):
                self._budget.check()
                self._require_owner()
                ids = part[at:at + _FILES_AT_ONCE]
                try:
                    self._files.objects.delete([self._files.prefix + folder + id_ for id_ in ids])
                finally:
                    for id_ in ids:
                        self._files.forget(id_)
        return deleted

    def _look(self) -> tuple[set[str], _Files, int]:
        """What is needed, what is there, and how many metaranges of the history are not."""
        # Listed first: what is published after the listing is none of the files that may be deleted.
        files = [(folder, file) for folder in _FOLDERS for file in self._files.list(folder)]
        live = self._live()
        young = {MetaRangeId(file.id) for folder, file in files if folder == METARANGES and self._is_young(file)}
        needed: set[str] = set()
        missing: list[MetaRangeNotFound] = []
        for root in live.needed | young:
            try:
                needed.update(self._parts_of(root))
            except MetaRangeNotFound as error:
                missing.append(error)
        # Another collection may have taken what was needed when it was looked up, and no longer is.
        again = self._live().needed if missing else frozenset()
        for lost in missing:
            if lost.metarange_id in again:
                raise lost
        gone = 0
        for root in live.history - live.needed - young:
            try:
                needed.update(self._parts_of(root))
            except MetaRangeNotFound:
                gone += 1
        return needed, files, gone

    def _parts_of(self, metarange_id: MetaRangeId) -> set[str]:
        self._budget.check()
        entries = self._files.read_metarange(metarange_id, SplitRule()).entries
        return {metarange_id, *(entry.range_id for entry in entries)}

    def _parts_if_there(self, metaranges: Iterable[str]) -> Iterator[str]:
        for metarange_id in metaranges:
            # Another collection may have deleted it by now; then the caller that claims it finds that out.
            with contextlib.suppress(MetaRangeNotFound):
                yield from self._parts_of(MetaRangeId(metarange_id))

    def _reused(self) -> set[str]:
        found = set()
        for mark in self._files.list(REUSED):
            with contextlib.suppress(ObjectNotFound):
                found.add(self._files.objects.get(self._files.prefix + REUSED + mark.id).decode("ascii", "replace"))
        return found

    def _remove_old_dooms(self) -> None:
        marks = list(self._files.list(DOOMED))
        there, old = {mark.id for mark in marks}, {mark.id for mark in marks if not self._is_young(mark)}
        for mark in marks:
            # Writers give way to it until then, so that it may not go before it is old for certain.
            if mark.modified_at > self._stored_now + _MAX_SKEW_SECONDS:
                seen = mark.id + _SEEN
                if seen in old:
                    old.add(mark.id)
                elif seen not in there:
                    with contextlib.suppress(ObjectExists):
                        self._files.objects.create(self._files.prefix + DOOMED + seen, b"")
        self._files.objects.delete([self._files.prefix + DOOMED + name for name in sorted(old)])

    def _is_young(self, file: StoredFile) -> bool:
        return file.modified_at > self._now - self._grace_seconds


def _bytes_of(files: _Files) -> int:
    return sum(file.size_bytes for _, file in files)
