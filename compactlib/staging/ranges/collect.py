# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of range and metarange files, and the protocol that separates collections from writers.

    (absent) --written--> young --grace period--> old --unreachable--> doomed --deleted--> (absent)
                            ^                      ^                     |
                            |                      +------ spared -------+
                            +---- reused: the mark of reuse makes an old or doomed file young

The collection keeps a file that a live metarange needs, a file younger than the grace period, and a file that a
metarange younger than that needs. Files are never rewritten, so the age of a reused file does not show the reuse.
Therefore:

- *The collection* writes a doom mark with the ids of its victims. Then it lists the writers' marks of reuse, re-reads
  the live metaranges and lists all files again. Then it deletes the victims that are still unneeded, and removes its
  doom mark.
- *A writer* (`RangeFiles.mark_reuse`, `confirm`) writes a mark of reuse for each file that it found. Once all its
  files exist, it reads the doom marks, and then checks that all its files still exist.
- *A caller that reuses an unreachable metarange* (`RangeFiles.claim`) does the same with the metarange alone. A mark of
  reuse of a metarange covers its ranges, and a collection deletes metaranges before ranges.

If the writer's mark precedes the collection's listing, the collection sees the mark. Otherwise the writer sees the doom
mark and raises `BeingCollected`; or, if the doom mark was removed already, it sees that the file is missing. The same
holds for a file that one collection deleted and a writer wrote again, while a second collection knows the old file:
either the second collection sees a young file, or the writer sees the doom mark. Names of marks are unique, so that
collections may run concurrently. But the first collection may have deleted the new file and removed its mark before the
writer's check. So a collection also lists the doom marks of others: it treats their files as reused, and deletes no
file that its second listing does not show.
The doom mark of a collection that died refuses writers until it is older than the grace period. So a collection must
end within the grace period.

Ages alone do not protect a writer that is suspended for longer than the grace period, nor files that a wrong clock has
dated. Therefore:

- a writer checks last that its files exist, including its own;
- a metarange that appears between the two listings of a collection is needed at any age;
- the second call of `live`, after the doom mark is written, invalidates updates in flight (`BranchStore.fence`), so
  that their callers re-read the branch and check their files again;
- "now" is the earlier of the caller's clock and the clock of the object store, which dates the files;
- a doom mark far in the future (the object store's clock was wrong, and the collection died) gets a second mark, and
  both are removed once the second is old.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from compactlib.budget import Budget
from compactlib.objects import ObjectExists, ObjectInfo, ObjectNotFound
from compactlib.staging.errors import MetaRangeNotFound
from compactlib.staging.ranges.files import DOOMED, INCOMING, METARANGES, RANGES, REUSED, RangeFiles
from compactlib.staging.values import Collected, LiveMetaRanges, MetaRangeId

_FOLDERS: Final = (METARANGES, RANGES)
"""In the order of deletion: never a metarange without its ranges."""
_SEEN: Final = ".seen"
"""Suffix of the second mark of a doom mark that is dated in the future: when a collection first saw it."""
_FILES_AT_ONCE: Final = 1000
_MAX_SKEW_SECONDS: Final = 3600.0
"""Marks dated further in the future were written under a wrong clock."""

_Files: TypeAlias = list[tuple[str, ObjectInfo]]
"""Pairs of folder and file."""


class RangeCollector:
    """One collection: deletes the files that no live metarange needs and that are older than the grace period.

    `live` returns every metarange that a commit or a branch record names now. It is called with `True` before the
    deletes, and must then also invalidate updates in flight. `require_owner` is called before every 1,000 deletes. The
    difference between the clock and the object store's must be much less than the grace period.
    """

    def __init__(self, files: RangeFiles, live: Callable[[bool], LiveMetaRanges], grace_seconds: float,
                 budget: Budget | None = None, require_owner: Callable[[], object] = lambda: None) -> None:
        self._files = files
        self._live = live
        self._grace_seconds = grace_seconds
        self._budget = budget or Budget()
        self._require_owner = require_owner
        self._now = self._stored_now = 0.0

    def run(self) -> Collected:
        """Delete unneeded files. Two listings of all files, and one request for each live metarange not cached.

        Nothing is deleted if a live metarange cannot be read. A store that denies deletes is left without a mark.
        """
        self._read_clocks()
        for folder in (INCOMING, REUSED):
            self._files.objects.delete([self._files.prefix + folder + mark.key for mark in self._files.list(folder)
                                        if not self._is_young(mark)])
        self._remove_old_dooms()
        needed, files = self._sense()
        unneeded = [(folder, file) for folder, file in files if file.key not in needed]
        doomed = {file.key for _, file in unneeded if not self._is_young(file)}
        deleted = self._doom_and_delete(doomed, {file.key for _, file in files}) if doomed else []
        freed = _bytes_of(deleted)
        return Collected(
            metaranges_deleted=sum(folder == METARANGES for folder, _ in deleted),
            ranges_deleted=sum(folder == RANGES for folder, _ in deleted),
            bytes_freed=freed, live=len(files) - len(unneeded), live_bytes=_bytes_of(files) - _bytes_of(unneeded),
            young=len(unneeded) - len(deleted), young_bytes=_bytes_of(unneeded) - freed)

    def _read_clocks(self) -> None:
        """Read the object store's clock from the date of a new mark without victims."""
        mark = self._files.prefix + DOOMED + self._files.new_name()
        # A mark that cannot be deleted would refuse writers: check on a missing file that deletes are allowed.
        self._files.objects.delete([mark])
        self._files.objects.create(mark, b"")
        try:
            self._stored_now = self._files.objects.info(mark).modified_at
        except ObjectNotFound:
            # This process was suspended until another collection removed the mark as an old one.
            self._read_clocks()
            return
        self._files.objects.delete([mark])
        self._now = min(self._files.clock.now(), self._stored_now)

    def _doom_and_delete(self, doomed: set[str], known: set[str]) -> _Files:
        name = self._files.new_name()
        mark = self._files.prefix + DOOMED + name
        try:
            self._files.objects.create(mark, "\n".join(sorted(doomed)).encode("ascii"))
            return self._delete(doomed, known, name)
        finally:
            self._files.objects.delete([mark])

    def _delete(self, doomed: set[str], known: set[str], name: str) -> _Files:
        used = {*self._files.texts(REUSED), *self._files.doomed(besides=name)}
        again, files = self._sense(fenced=True)
        metaranges = {file.key for folder, file in files if folder == METARANGES}
        needed = used | again | {file.key for _, file in files if self._is_young(file)}
        needed.update(self._parts_if_there((metaranges & used) | (metaranges - known)))
        # Only existing files: one that another collection has deleted may be written again at any moment.
        deleted = [(folder, file) for folder, file in files if file.key in doomed and file.key not in needed]
        for folder in _FOLDERS:
            # No request for both folders: a request may fail, or crash, after some of its files.
            part = [file.key for each, file in deleted if each == folder]
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

    def _sense(self, *, fenced: bool = False) -> tuple[set[str], _Files]:
        """Return the needed ids and the existing files."""
        # Listed first: a file that is published after the listing cannot be a victim.
        files = [(folder, file) for folder in _FOLDERS for file in self._files.list(folder)]
        live = self._live(fenced)
        young = {MetaRangeId(file.key) for folder, file in files if folder == METARANGES and self._is_young(file)}
        needed: set[str] = set()
        missing: dict[MetaRangeId, MetaRangeNotFound] = {}
        for root in live.needed | live.history | young:
            try:
                needed.update(self._parts_of(root))
            except MetaRangeNotFound as error:
                missing[root] = error
        # Another collection may have deleted a metarange that branches needed at the first call and no longer need.
        if missing.keys() & (live.needed | young):
            for lost in missing.keys() & self._live(fenced).needed:
                raise missing[lost]
        return needed, files

    def _parts_of(self, metarange_id: MetaRangeId) -> set[str]:
        self._budget.check()
        entries = self._files.read_metarange(metarange_id).entries
        return {metarange_id, *(entry.range_id for entry in entries)}

    def _parts_if_there(self, metaranges: Iterable[str]) -> Iterator[str]:
        for metarange_id in metaranges:
            # Another collection may have deleted it; then the caller that claims it raises.
            with contextlib.suppress(MetaRangeNotFound):
                yield from self._parts_of(MetaRangeId(metarange_id))

    def _remove_old_dooms(self) -> None:
        marks = {mark.key: mark for mark in self._files.list(DOOMED)}
        for name, mark in marks.items():
            seen = marks.get(name + _SEEN)
            # The mark refuses writers until it is removed, so it stays until it is certainly old.
            if seen is None and mark.modified_at > self._stored_now + _MAX_SKEW_SECONDS:
                with contextlib.suppress(ObjectExists):
                    self._files.objects.create(self._files.prefix + DOOMED + name + _SEEN, b"")
            elif not self._is_young(seen or mark):
                self._files.objects.delete([self._files.prefix + DOOMED + each for each in (name, name + _SEEN)])

    def _is_young(self, file: ObjectInfo) -> bool:
        return file.modified_at > self._now - self._grace_seconds


def _bytes_of(files: _Files) -> int:
    return sum(file.size_bytes for _, file in files)
