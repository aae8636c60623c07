# SPDX-License-Identifier: Apache-2.0
"""Crash recovery: finishing or undoing an interrupted compaction, before a store looks at its folder.

What the compaction log says decides:

* no log, or PREPARE: nothing has changed; what attempts have left is removed;
* COPY: nothing has changed; new segments that are whole, and what this process's own attempts had written, are kept
  for `resume`;
* COPY, but a new segment has its name already: the step that said COMMIT is damaged; the names are taken back, which
  is right as long as all sources are there, and reported;
* COMMIT, CLEANUP: the new segments count; they are read, they get their names, the sources go, and the cycle has ended;
* COMMIT, CLEANUP, but a new segment is damaged or gone, and all sources are there: the new segments go instead, which
  is reported; the next compaction copies anew;
* DONE: the log goes.

The sources of earlier cycles in the log go again, since their removal may not have been durable.

A hard delete that was interrupted is finished first. Running this again changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import attrs

from compactlib.blobstore.compaction.commit.publish import place_targets, private_name, remove_names, remove_sources
from compactlib.blobstore.compaction.progress.compaction_file import LOG_NAME, close_log, read_log, write_log
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Cycle, Phase, Target
from compactlib.blobstore.model.names import (
    HALF_WRITTEN_SUFFIX,
    INDEX_SUFFIX,
    UNPUBLISHED_SUFFIX,
    SegmentName,
    place_of_index_file,
    segment_of_log_file,
)
from compactlib.blobstore.segment.erasure import STATE_NAME, drop_index_files, redo_erasures
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, SegmentFile, is_ordinary
from compactlib.blobstore.segment.scan import DamagedRange, scan_records
from compactlib.errors import CorruptData, DiskFull
from compactlib.files.disk import Files, StrPath, list_folder

DAMAGED_SUFFIX = ".damaged"
_HALF_WRITTEN = (LOG_NAME + HALF_WRITTEN_SUFFIX, STATE_NAME + HALF_WRITTEN_SUFFIX)
_ATTEMPT = re.compile(r"(0|[1-9][0-9]{0,18})_(0|[1-9][0-9]{0,18})\.log(\..+)?" + re.escape(UNPUBLISHED_SUFFIX))


@attrs.frozen
class CompactionRecovery:
    """What was found and done.

    Attributes:
        log: the compaction that is still in progress, which the next one finishes, or `None`.
        finished: segments that took the place of others, because the commit had happened.
        removed: names that were removed.
        damage: the compaction log could not be read and was set aside, or its last step could not, or a new segment
            was damaged and its sources were kept; everything else was kept.
    """

    log: CompactionLog | None = None
    finished: tuple[SegmentName, ...] = ()
    removed: tuple[str, ...] = ()
    damage: CorruptData | None = None

    def __bool__(self) -> bool:
        return bool(self.log or self.finished or self.removed or self.damage)


def recover_compaction(folder: StrPath, files: Files) -> CompactionRecovery:
    """Bring a store's folder into a state in which each position has one segment. The caller holds the store's lock.

    Raises:
        CorruptData: the compaction log is damaged and two generations of one segment are there, so that it is unknown
            which counts; or a committed segment is not whole. Nothing was removed.
        Unsupported: the compaction log is that of a later release.
        StorageError: the disk refused; call again.
    """
    # What needs room waits on a full disk: the records are overwritten by then, and the next hard delete does the rest.
    with contextlib.suppress(DiskFull):
        redo_erasures(files, folder, partial(drop_index_files, files, folder))
    damage = None
    try:
        log = read_log(folder)
    except CorruptData as error:
        log, damage = None, error
        _set_aside(files, folder, error)
    finished: tuple[SegmentName, ...] = ()
    if log is not None and log.phase is Phase.COPY:
        damage = _take_back_names(files, folder, log.cycles[-1])
    if log is not None:
        ended = [name for cycle in log.cycles if cycle.ended_ms is not None for name in cycle.sources]
        remove_sources(files, folder, ended)
    if log is not None and log.phase in (Phase.COMMIT, Phase.CLEANUP):
        damage = _damaged_target(folder, log.cycles[-1])
        if damage is not None:
            log = _undo_cycle(files, folder, log)
        else:
            log = _finish_cycle(files, folder, log)
            finished = tuple(target.name for target in log.cycles[-1].targets)
    if log is not None and log.phase is Phase.DONE:
        close_log(files, folder, log)
        log = None
    # There is no other writer now: a half-written file has no owner, and is removed.
    half_written = [name for name in list_folder(folder) if name in _HALF_WRITTEN
                    or (name.endswith(INDEX_SUFFIX + HALF_WRITTEN_SUFFIX)
                        and place_of_index_file(name.removesuffix(HALF_WRITTEN_SUFFIX)) is not None)]
    removed = tuple(sorted({*leftovers(folder, log), *half_written}))
    remove_names(files, folder, removed)
    if removed:
        files.sync_folder(folder)
    return CompactionRecovery(log, finished, removed, damage)


def _take_back_names(files: Files, folder: StrPath, cycle: Cycle) -> CorruptData | None:
    """Names are given after the step to COMMIT is durable: one that is given says that this step was there."""
    present = {name for name in map(segment_of_log_file, list_folder(folder)) if name is not None}
    given = [name for name in cycle.planned if name in present and is_ordinary(os.path.join(folder, name.log_file))]
    if not given or not present.issuperset(cycle.sources):
        return None
    for name in given:
        files.rename(os.path.join(folder, name.log_file), os.path.join(folder, private_name(name)))
    files.sync_folder(folder)
    path = os.path.join(folder, LOG_NAME)
    return CorruptData(path=path, offset=os.path.getsize(path), expected="the step that commits the last cycle",
                       found=f"no such step, though segment {given[0]} has its name")


def _damaged_target(folder: StrPath, cycle: Cycle) -> CorruptData | None:
    """What is wrong with the new segments, as long as all sources are there; `None` if nothing is.

    The first source goes only after all new segments were read: from then on they count, whatever becomes of them.
    """
    if not all(is_ordinary(os.path.join(folder, source.log_file)) for source in cycle.sources):
        return None
    for target in cycle.targets:
        private = os.path.join(folder, private_name(target.name))
        path = private if is_ordinary(private) else os.path.join(folder, target.name.log_file)
        try:
            _check_target(path, target)
        except CorruptData as error:
            return error
    return None


def _check_target(path: str, target: Target) -> None:
    if not is_ordinary(path):
        raise CorruptData(path=path, offset=0, expected=f"a new segment of {target.end} bytes", found="no such file")
    with contextlib.closing(SegmentFile(path)) as file:
        size, name = file.size(), file.header.name
        if (size, name) != (target.end, target.name):
            raise CorruptData(path=path, offset=0, expected=f"new segment {target.name} of {target.end} bytes",
                              found=f"segment {name} of {size} bytes")
        count = 0
        for found in scan_records(file, SEGMENT_HEADER_BYTES, target.end):
            if isinstance(found, DamagedRange) or not found.whole:
                raise CorruptData(path=path, offset=found.offset, expected="a record as it was copied",
                                  found=found.found if isinstance(found, DamagedRange) else "content whose CRC fails")
            count += 1
    if count != target.entries:
        raise CorruptData(path=path, offset=target.end, expected=f"{target.entries} records", found=f"{count}")


def _undo_cycle(files: Files, folder: StrPath, log: CompactionLog) -> CompactionLog:
    """The sources count again. Without one of the new segments, which go first, each opening comes to the same."""
    targets = [target.name for target in log.cycles[-1].targets]
    remove_names(files, folder, [private_name(name) for name in targets])
    remove_sources(files, folder, targets)
    files.sync_folder(folder)
    undone = attrs.evolve(log, cycles=log.cycles[:-1])
    write_log(files, folder, undone)
    return undone


def _finish_cycle(files: Files, folder: StrPath, log: CompactionLog) -> CompactionLog:
    cycle = log.cycles[-1]
    at = cycle.commit_started_ms
    assert at is not None
    place_targets(files, folder, cycle)
    # The new segments' names, before anything of the sources goes.
    files.sync_folder(folder)
    remove_sources(files, folder, cycle.sources)
    files.sync_folder(folder)
    cleaning = log.start_cleanup(at) if log.phase is Phase.COMMIT else log
    ended = cleaning.end_cycle(at)
    try:
        # Only now, when the sources have given their room back.
        write_log(files, folder, ended)
    except DiskFull:
        # The segments are as they should be, so that the store can be opened; the log shows that when it is resumed.
        return log
    return ended


def _set_aside(files: Files, folder: StrPath, error: CorruptData) -> None:
    """Without a clash of generations, what the damaged log said does not matter.

    Either nothing was committed; or all new segments are there, and of the sources at most some that a crash kept from
    being removed. Their records are the same as their copies, or follow from newer ones that were kept.
    """
    names = sorted(name for name in map(segment_of_log_file, list_folder(folder)) if name is not None)
    for older, newer in pairwise(names):
        if older.position == newer.position:
            raise error
    path = os.path.join(folder, LOG_NAME)
    files.rename(path, path + DAMAGED_SUFFIX)
    files.sync_folder(folder)


def leftovers(folder: StrPath, log: CompactionLog | None) -> Iterator[str]:
    """Names that attempts have left and that will not be used, given the compaction in progress, if any.

    The store may be open and writing: names that are its own, temporary ones included, are not among them.
    """
    names = list_folder(folder)
    cycle = None if log is None else log.cycle
    whole = set() if cycle is None else {target.name for target in cycle.targets}
    wanted = set() if cycle is None else set(cycle.planned) - whole
    present = {name for name in map(segment_of_log_file, names) if name is not None}
    for name in names:
        place = place_of_index_file(name)
        if place is not None:
            if place.segment not in present | whole:
                yield name
        elif _ATTEMPT.fullmatch(name) and name not in {private_name(each) for each in whole}:
            # Attempts elsewhere may still be writing to theirs; ours have died with their process.
            owner = segment_of_log_file(name.split(".log", 1)[0] + ".log")
            if not (owner in wanted and name.endswith(".kept" + UNPUBLISHED_SUFFIX)):
                yield name
