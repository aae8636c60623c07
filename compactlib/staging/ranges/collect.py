# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of range and metarange files.

A file is kept if a live metarange needs it, if it is younger than the grace period, or if a metarange younger than that
needs it. Files are never rewritten, so the age of one that is used AGAIN does not show it. Therefore:

- the collection first writes a doom mark for each file it wants to delete; then lists the writers' marks of reuse, and
  looks once more what is live and how old each file is; and only then deletes what is still unneeded; last it takes
  the doom marks away;
- a writer leaves a mark of reuse for each file that it found there; and when all its files are there, lists the doom
  marks, and last looks whether the reused files are still there.
- a caller that uses a metarange again that nothing names any more does the same with it alone (`claim`): a mark of
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

- each collection first leaves a trace, which stays. A writer that finds one which was not there when it began looks
  whether all its files still are;
- a metarange that appears between the two looks of a collection is needed, whatever its age;
- `live` is asked for the second time once the files are doomed. It then makes sure that no branch record can be
  changed by a caller that read it before (see `garbage`), so that it reads again, and looks again at what it has made;
- "now" is the earlier one of the caller's clock and of that of the object store, which dates the files;
- a doom mark that lies far in the future (the object store's clock went wrong, and the collection died) gets a second
  mark beside it, and both go once that one is old.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.objects import ObjectExists, ObjectNotFound
from compactlib.staging.errors import MetaRangeNotFound
from compactlib.staging.ranges.files import (
    COLLECTION,
    DOOMED,
    INCOMING,
    METARANGES,
    RANGES,
    REUSED,
    RangeFiles,
)
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.values import Collected, LiveMetaRanges, MetaRangeId, StoredFile

_FOLDERS: Final = (METARANGES, RANGES)
"""In the order of deletion: never a metarange without its ranges."""
_SEEN: Final = ".seen"
"""Behind the name of a doom mark that lies in the future: the mark of when it was seen first."""
_FILES_AT_ONCE: Final = 1000
_MAX_SKEW_SECONDS: Final = 3600.0
"""Marks that lie further in the future were made by a clock gone wrong."""


class RangeCollector:
    """One collection. See this module's text.

    Args:
        files: what to collect.
        clock: what "now" is; must agree with the object store's clock well within the grace period.
        live: see `CommittedRanges.collect`.
        grace_seconds: see `CommittedRanges.collect`; > 0 while there are writers.
        budget: see `CommittedRanges.collect`.
        require_owner: see `CommittedRanges.collect`.

    Raises:
        InvalidInput: the grace period is negative.
    """

    def __init__(self, files: RangeFiles, clock: Clock, live: Callable[[], LiveMetaRanges],
                 grace_seconds: float, budget: Budget | None = None,
                 require_owner: Callable[[], object] = lambda: None) -> None:
        if not grace_seconds >= 0:
            raise InvalidInput(f"grace_seconds is {grace_seconds}; give 0 or more")
        self._files = files
        self._clock = clock
        self._live = live
        self._grace_seconds = grace_seconds
        self._budget: Budget = Budget() if budget is None else budget
        self._require_owner = require_owner
        self._now = self._stored_now = 0.0
        self._trace = ""

    def run(self) -> Collected:
        """Delete files that are not needed. Two listings of everything, and one request for each live metarange not
        cached.

        Raises:
            MetaRangeNotFound, DamagedRange: a live metarange cannot be read; nothing is deleted.
            ObjectStoreFailed, StorageError: the store denies deletes, say; then no mark is left either.
        """
        # Marks that could not be taken away again would turn writers away: so a delete comes first, of nothing.
        self._files.objects.delete([self._files.path_of_doom(COLLECTION, self._files.new_name())])
        self._begin()
        self._remove_old(INCOMING)
        self._remove_old(REUSED)
        self._remove_old_dooms()
        needed, files, gone = self._look()
        unneeded = [(folder, file) for folder, file in files if file.id not in needed]
        doomed = [(folder, file) for folder, file in unneeded if not self._is_young(file)]
        marks = [self._files.path_of_doom(file.id, self._files.new_name()) for _, file in doomed]
        try:
            for mark in marks:
                self._files.objects.create(mark, b"")
            deleted = self._delete({file.id for _, file in doomed}, {file.id for _, file in files}, marks)
        finally:
            self._take_away(marks)
        freed = _bytes_of(deleted)
        return Collected(
            metaranges_deleted=sum(folder == METARANGES for folder, _ in deleted),
            ranges_deleted=sum(folder == RANGES for folder, _ in deleted),
            bytes_freed=freed, live=len(files) - len(unneeded), live_bytes=_bytes_of(files) - _bytes_of(unneeded),
            young=len(unneeded) - len(deleted), young_bytes=_bytes_of(unneeded) - freed, gone=gone)

    def _begin(self) -> None:
        """Leave the trace of this collection, and see from it what the time is where files are dated."""
        self._trace = self._files.path_of_doom(COLLECTION, self._files.new_name())
        self._files.objects.create(self._trace, b"")
        try:
            self._stored_now = self._files.objects.info(self._trace).modified_at
        except ObjectNotFound:
            # It stood still until another collection took the trace for an old one.
            self._begin()
            return
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

    def _delete(self, doomed: set[str], known: set[str], marks: list[str]) -> list[tuple[str, StoredFile]]:
        if not doomed:
            return []
        reused = self._reused() | self._doomed_by_others(set(marks))
        again, files, _ = self._look()
        needed = reused | again
        metaranges = {file.id for folder, file in files if folder == METARANGES}
        needed.update(self._parts_if_there(metaranges & reused | metaranges - known))
        needed.update(file.id for _, file in files if self._is_young(file))
        # Of those that are there now: what another collection has taken may be written anew at any moment.
        deleted = [(folder, file) for folder, file in files if file.id in doomed and file.id not in needed]
        for folder in _FOLDERS:
            # No request for files of both: it may fail for some of its files, or be lost for them in a crash.
            self._delete_files(folder, [file for each, file in deleted if each == folder])
        return deleted

    def _delete_files(self, folder: str, files: list[StoredFile]) -> None:
        for at in range(0, len(files), _FILES_AT_ONCE):
            self._budget.check()
            self._require_owner()
            part = files[at:at + _FILES_AT_ONCE]
            try:
                self._files.objects.delete([self._files.prefix + folder + file.id for file in part])
            finally:
                for file in part:
                    self._files.forget(file.id)

    def _look(self) -> tuple[set[str], list[tuple[str, StoredFile]], int]:
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

    def _doomed_by_others(self, own: set[str]) -> set[str]:
        return {mark.id.partition(".")[0] for mark in self._files.list(DOOMED)
                if self._files.prefix + DOOMED + mark.id not in own}

    def _remove_old(self, folder: str) -> None:
        self._files.objects.delete([self._files.prefix + folder + mark.id for mark in self._files.list(folder)
                                    if not self._is_young(mark)])

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
        # Without a grace its own trace is old at once; a writer has to find it.
        paths = {self._files.prefix + DOOMED + name for name in old} - {self._trace}
        self._files.objects.delete(sorted(paths))

    def _is_young(self, file: StoredFile) -> bool:
        return file.modified_at > self._now - self._grace_seconds


def _bytes_of(files: Iterable[tuple[str, StoredFile]]) -> int:
    return sum(file.size_bytes for _, file in files)
