# SPDX-License-Identifier: Apache-2.0
"""Opening a store's folder: lock, list of segments, the last step of a compaction, then the log.

A killed process may have left data in the page cache that is not durable. So the names in the folder and the folder's
own name, the list of segments and the active segment are synced before anything is built on them. The sync of the names
covers the folder of a store that was just made, and the note of a hard delete, whose records are overwritten here. All
other names are covered later, too: a new segment and a step of a compaction sync the folder before the list names them.
Only a new store needs room on the disk.

If files of sources of the last step are present, opening finishes the step: it writes the list again, since the list
may not be durable, reads every output, and removes the sources, unless an output is damaged (`lay_out`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

import attrs

from compactlib._steady_clock import SteadyClock
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents, LogSegment
from compactlib.blobstore.erasure import erase_records, read_state
from compactlib.blobstore.errors import NotAStore
from compactlib.blobstore.folder import LoadedSegment, load_store, read_folder
from compactlib.blobstore.hard_delete import finish_erasures
from compactlib.blobstore.index import OpenIndex, replace_parts
from compactlib.blobstore.log import MAX_UNSYNCED_RECORDS, Log, leftovers, remove_names
from compactlib.blobstore.names import FIRST_SEGMENT, HALF_WRITTEN_SUFFIX, SegmentName, segment_of_log_file
from compactlib.blobstore.records import milliseconds
from compactlib.blobstore.scan import check_segment
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, Descriptor, begin_segment
from compactlib.blobstore.segment_list import FILE_NAME, SegmentList, SegmentListFile, lay_out
from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import CorruptData, DiskFull, StorageError
from compactlib.files.disk import Files, list_folder, make_missing_folder, sync_names
from compactlib.files.folder_lock import LOCK_NAME
from compactlib.guard import Guard

_OF_NO_STORE = (LOCK_NAME, "lost+found", FILE_NAME + HALF_WRITTEN_SUFFIX)
"""Files, in addition to hidden ones, that a folder for a new store may have, such as those of a cut off creation."""


@attrs.frozen
class BlobRecoveryReport:
    """The damage that opening a store found, and what it cut off. Empty after a clean close.

    Attributes:
        damage: the damage found; everything else is readable.
        cut_bytes: bytes after the last whole record that were truncated: writes that were never acknowledged.
    """

    damage: tuple[CorruptData, ...] = ()
    cut_bytes: int = 0


def make_folder(folder: str, config: BlobStoreConfig, files: Files, *, create: bool) -> None:
    """Create the folder of a store unless it exists."""
    if not create:
        names = list_folder(folder) if os.path.isdir(folder) else []
        if FILE_NAME not in names and not any(map(segment_of_log_file, names)):
            raise NotAStore(f"{folder} holds no blob store; check the path, or open it with create=True to make one")
    elif not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise NotAStore(f"{folder} is not a folder; choose another place for the store")
        config.check_capacity()
        # Two processes may create one store concurrently: the process that gets the lock does the rest.
        make_missing_folder(files, folder)


def open_log(guard: Guard, folder: str, config: BlobStoreConfig, files: Files, clock: Clock,
             new_incarnation: Callable[[], bytes]) -> tuple[Log, BlobRecoveryReport]:
    """Open or create the log in a folder; the guard's change is under way. See `BlobStore` for the errors."""
    guard.lock_folder(folder, meanwhile="read it with a BlobReader")
    sync_names(files, folder)
    found = read_folder(folder)
    if found.listed is None:
        others = [name for name in found.names if name not in _OF_NO_STORE and not name.startswith(".")]
        if others:
            raise NotAStore(f"{folder} holds {others[0]!r} and no blob store; choose an empty folder")
        config.check_capacity()
        size = min(config.segment_bytes, config.capacity_bytes)
        descriptor = Descriptor(new_incarnation(), size, config.capacity_bytes // size, milliseconds(clock.now()))
        listed = SegmentList(store=descriptor, number=1)
    else:
        listed, descriptor = found.listed, found.listed.store
    lists = SegmentListFile(files, folder, listed)
    guard.keep(lists)
    if found.listed is None:
        lists.make_ready()  # makes the folder a store
    layout = lay_out(folder, listed, found.present, _damaged_outputs(files, folder, lists, found.present))
    left = leftovers(list_folder(folder), layout)
    if left:
        remove_names(files, folder, left)
        files.sync_folder(folder)
    with contextlib.suppress(DiskFull):
        # First: the log is read where an index is missing, and a crash may have torn the records of the note.
        erase_records(files, folder, read_state(folder, descriptor.incarnation)[0].erasures)
    loaded = load_store(folder, layout, {})
    refused: list[tuple[str, dict[str, object]]] = []
    for each in loaded:
        if each.is_rebuilt:
            try:
                replace_parts(files, folder, each.segment.parts, descriptor.incarnation)
            except StorageError as error:
                # The next opening rebuilds it again.
                refused.append(("blobstore_index_not_written", {"folder": folder, "index": str(each.segment.name),
                                                                "error": str(error)}))
    if not loaded or loaded[-1].segment.is_lost:
        loaded.append(_begun(files, folder, descriptor, loaded))
    active = loaded[-1]
    cut = max(active.size - active.segment.end, 0)
    with contextlib.closing(files.open(os.path.join(folder, active.segment.name.log_file))) as out:
        if cut:
            # These records were never acknowledged.
            out.truncate(active.segment.end)
        out.sync()  # reads return the remaining records
    contents = LogContents.of(descriptor.incarnation, [each.segment for each in loaded])
    last = max(active.header.first_sequence - 1, contents.last_sequence)
    # Peers may have seen records that a crash has lost, so their sequences are skipped.
    following = last + 1 + (MAX_UNSYNCED_RECORDS if last > 0 else 0)
    counted = tuple(each.segment.name for each in loaded)
    is_as_listed = attrs.evolve(layout.list, segments=counted) == listed and found.is_list_whole
    lists.known = attrs.evolve(layout.list, number=lists.known.number, segments=counted)
    if not is_as_listed:
        with contextlib.suppress(DiskFull):
            lists.write(lists.known)
    log = Log(guard, files, folder, config, SteadyClock(clock), contents, lists, following,
              sum(part.file_bytes for part in active.segment.parts))
    with contextlib.suppress(DiskFull):
        # On a full disk the next reclaim does this; until then the contents count as erased.
        finish_erasures(log)
    damage = [*found.damage, *layout.damage, *(error for each in loaded for error in each.damage)]
    log.events += [("blobstore_damage", {"folder": folder, "path": error.path, "offset": error.offset,
                                         "expected": error.expected, "found": error.found}) for error in damage]
    log.events += refused
    if cut:
        log.events.append(("blobstore_tail_cut", {"folder": folder, "bytes": cut}))
    return log, BlobRecoveryReport(tuple(error.with_traceback(None) for error in damage), cut)


def _damaged_outputs(files: Files, folder: str, lists: SegmentListFile, present: frozenset[SegmentName],
                     ) -> dict[SegmentName, CorruptData]:
    """Make the list durable and read the outputs of its step, if files of sources are to be removed; return the damage.
    """
    listed, damage = lists.known, dict[SegmentName, CorruptData]()
    step = listed.step
    if step is None or present.isdisjoint(step.sources) or not present.issuperset(each.name for each in step.outputs):
        return damage
    try:
        lists.write(listed)
    except DiskFull:
        with contextlib.closing(files.open(os.path.join(folder, FILE_NAME))) as out:
            out.sync()
    for each in step.outputs:
        try:
            check_segment(os.path.join(folder, each.name.log_file), listed.store.header(each.name), each.end,
                          each.records, (), Budget())
        except CorruptData as error:
            damage[each.name] = error
    return damage


def _begun(files: Files, folder: str, descriptor: Descriptor, loaded: Sequence[LoadedSegment]) -> LoadedSegment:
    """Begin the active segment of a new store, or of a store that has lost its active segment."""
    name = loaded[-1].segment.name.next_position if loaded else FIRST_SEGMENT
    last = max((each.segment.last_sequence for each in loaded), default=0)
    header = descriptor.header(name, last + 1 + MAX_UNSYNCED_RECORDS if last else 0)
    begin_segment(files, folder, header).close()
    return LoadedSegment(LogSegment(name, open=OpenIndex(name, SEGMENT_HEADER_BYTES)), header)
