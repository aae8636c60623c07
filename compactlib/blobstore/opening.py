# SPDX-License-Identifier: Apache-2.0
"""Opening a store's folder: lock, descriptor, an interrupted step of a compaction, then the log.

What is found may be in the page cache only, left there by a process that was killed before it had synced it: so the
folder, its parent, the list of segments and the active segment are synced before anything is built on them. Nothing but
a new store needs room on the disk.

The last step of a compaction, if some of its sources are still there: the list is written anew, since it may not be
durable; every output is read; then the sources go. If an output is damaged and all sources are there, the step is taken
back instead. If some sources are gone, nothing is removed, and the damage is reported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

import attrs

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents, LogSegment
from compactlib.blobstore.descriptor import DESCRIPTOR_FILE, Descriptor, read_descriptor, write_descriptor
from compactlib.blobstore.erasure import STATE_NAME, drop_index_files, pending_erasures, redo_erasures
from compactlib.blobstore.errors import NotAStore
from compactlib.blobstore.index_file import replace_parts
from compactlib.blobstore.layout import lay_out
from compactlib.blobstore.load import LoadedSegment, load_lost, load_segment
from compactlib.blobstore.log import MAX_UNSYNCED_RECORDS, Log, leftovers, remove_names, remove_segments
from compactlib.blobstore.names import (
    FIRST_SEGMENT,
    HALF_WRITTEN_SUFFIX,
    SegmentName,
    segment_of_index_file,
    segment_of_log_file,
)
from compactlib.blobstore.open_index import OpenIndex
from compactlib.blobstore.scan import ScannedRecord, scan_records
from compactlib.blobstore.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentFile,
    create_segment,
    decode_header,
)
from compactlib.blobstore.segment_list import FILE_NAME, FoundList, Output, SegmentList, SegmentListFile, read_list
from compactlib.blobstore.store_clock import StoreClock
from compactlib.blobstore.tail import LogWriter
from compactlib.blobstore.values import milliseconds
from compactlib.clock import Clock
from compactlib.errors import CorruptData, DiskFull, StorageError
from compactlib.files.disk import Files, list_folder, look_at, make_missing_folder, sync_names
from compactlib.files.folder_lock import LOCK_NAME
from compactlib.guard import Guard

_OF_NO_STORE = (LOCK_NAME, "lost+found", *(name + suffix for name in (FILE_NAME, DESCRIPTOR_FILE)
                                           for suffix in ("", HALF_WRITTEN_SUFFIX)))
"""What a folder may hold in which a store is created, beside hidden files; a crash may have cut off its creation."""


@attrs.frozen
class BlobRecoveryReport:
    """What opening a store found out of order. All empty after a clean close.

    Attributes:
        damage: what is not as it was written; whatever is not named here is readable.
        rebuilt: segments whose index, or part of it, was made again from the log.
        cut_bytes: bytes behind the last whole record that were cut off: writes that were never acknowledged.
    """

    damage: tuple[CorruptData, ...] = ()
    rebuilt: tuple[SegmentName, ...] = ()
    cut_bytes: int = 0

    def to_dicts(self) -> list[dict[str, object]]:
        """One row for each finding."""
        rows: list[dict[str, object]] = [
            {"finding": "damage", "path": error.path, "offset": error.offset, "found": error.found}
            for error in self.damage]
        rows.extend({"finding": "index rebuilt", "path": str(name)} for name in self.rebuilt)
        if self.cut_bytes:
            rows.append({"finding": "tail cut", "bytes": self.cut_bytes})
        return rows


def make_folder(folder: str, config: BlobStoreConfig, files: Files, *, create: bool) -> None:
    """Have the folder of a store be there.

    Raises:
        NotAStore: there is no store, and none may be made; or something else has the name.
        StorageError: the disk refused.
    """
    if not create:
        names = list_folder(folder) if os.path.isdir(folder) else []
        if DESCRIPTOR_FILE not in names and not any(map(segment_of_log_file, names)):
            raise NotAStore(f"{folder} holds no blob store; check the path, or open it with create=True to make one",
                            path=folder)
    elif not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise NotAStore(f"{folder} is not a folder; choose another place for the store", path=folder)
        config.check_capacity()
        # Two processes may create one store at once: the one that gets the lock does the rest.
        make_missing_folder(files, folder)


def open_log(guard: Guard, folder: str, config: BlobStoreConfig, files: Files, clock: Clock,
             new_incarnation: Callable[[], bytes]) -> tuple[Log, BlobRecoveryReport]:
    """Open or create the log in a folder; the guard's change is under way. See `BlobStore` for the errors."""
    guard.lock_folder(folder, meanwhile="read it with a BlobReader")
    sync_names(files, folder)
    names = list_folder(folder)
    present = _present(folder, names)
    found = read_list(folder)
    descriptor, damage, is_new = _descriptor(folder, names, present, config, clock, new_incarnation)
    if is_new:
        # The file that makes the folder a store comes last.
        found = FoundList(SegmentList(number=1))
        with contextlib.closing(SegmentListFile(files, folder, descriptor.log_segments, SegmentList(number=1))) as new:
            new.make_ready()
    if is_new or damage:
        _write_descriptor(files, folder, descriptor, is_new=is_new)
    listed = found.list.segments if found.list is not None else ()
    if not present and (listed or _has_evidence(names)):
        raise CorruptData(path=os.path.join(folder, FIRST_SEGMENT.log_file), offset=0, found="none, although the store "
                          "has had some; restore the folder from a copy", expected="the segments of the log")
    settled, step_damage, keeps = _settle_step(files, folder, descriptor, found, present)
    layout = lay_out(folder, settled, _present(folder, list_folder(folder)))
    lists = SegmentListFile(files, folder, descriptor.log_segments, layout.list)
    with contextlib.suppress(DiskFull):
        # What needs room waits on a full disk: the contents count as gone, and the next reclaim does the rest.
        redo_erasures(files, folder, lambda erasures: drop_index_files(files, folder, erasures))
    if not keeps:
        _remove_leftovers(files, folder, leftovers(list_folder(folder), layout))
    erased = pending_erasures(folder, descriptor.incarnation)
    newest = max((*layout.segments, *layout.lost), default=None)
    loaded = [load_segment(folder, name, descriptor, is_active=name == newest, erased=erased.get(name, ()))
              for name in layout.segments]
    loaded += [load_lost(folder, name, descriptor) for name in layout.lost]
    loaded.sort(key=lambda each: each.segment.name)
    unwritten = _write_rebuilt(files, folder, descriptor, loaded)
    if newest is None or newest in layout.lost:
        loaded.append(_begin_segment(files, folder, descriptor, loaded))
    active = loaded[-1]
    assert active.open is not None
    _settle_tail(files, folder, active)
    contents = LogContents.of(descriptor.incarnation, [each.segment for each in loaded], active.open)
    last = max(active.header.first_sequence - 1, active.open.last_sequence, contents.last_sequence)
    # Records that a crash may have lost have had numbers too, and peers may have seen them.
    following = last + 1 + (MAX_UNSYNCED_RECORDS if last > 0 else 0)
    writer = LogWriter(files, folder, active.header, active.open.end)
    log = Log(guard, files, folder, config, StoreClock(clock), descriptor, contents, writer, lists, following,
              active.index_bytes)
    counted = tuple(each.segment.name for each in loaded)
    if found.list is None or found.is_damaged or found.list.segments != counted or settled.list is not found.list:
        with contextlib.suppress(DiskFull):
            lists.write(attrs.evolve(lists.known, segments=counted))
    lists.known = attrs.evolve(lists.known, segments=counted)
    every = [*damage, *step_damage, *layout.damage, *(error for each in loaded for error in each.damage)]
    cut = max(active.size - active.open.end, 0)
    report = BlobRecoveryReport(tuple(error.with_traceback(None) for error in every),
                                tuple(each.segment.name for each in loaded if each.is_rebuilt), cut)
    log.events += [("blobstore_damage", {"folder": folder, "path": error.path, "offset": error.offset,
                                         "expected": error.expected, "found": error.found}) for error in every]
    log.events += unwritten
    if cut:
        log.events.append(("blobstore_tail_cut", {"folder": folder, "bytes": cut}))
    return log, report


def _present(folder: str, names: Iterable[str]) -> set[SegmentName]:
    """Return the segments in a folder; one that was cut off before it had a whole header was never anything."""
    present = set(filter(None, map(segment_of_log_file, names)))
    newest = max(present, default=None)
    if newest is not None and is_headless(folder, newest):
        listed = read_list(folder).list
        if listed is not None and newest not in listed.segments and not os.path.lexists(
                os.path.join(folder, newest.index_file)):
            present.discard(newest)
    return present


def is_headless(folder: str, name: SegmentName) -> bool:
    """Whether a segment's file ends before its header does."""
    path = os.path.join(folder, name.log_file)
    try:
        with open(path, "rb") as file:
            data = file.read(SEGMENT_HEADER_BYTES + 1)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    if len(data) > SEGMENT_HEADER_BYTES:
        return False
    try:
        decode_header(data, path)
    except CorruptData:
        return True
    return False


def _descriptor(folder: str, names: Sequence[str], present: set[SegmentName], config: BlobStoreConfig, clock: Clock,
                new_incarnation: Callable[[], bytes]) -> tuple[Descriptor, list[CorruptData], bool]:
    """Return the folder's descriptor: read, made again from the segments, or new; and what was wrong with it."""
    lost = CorruptData(path=os.path.join(folder, DESCRIPTOR_FILE), offset=0, expected="the store's descriptor",
                       found="segments, but no such file")
    try:
        known = read_descriptor(folder)
        if known is not None:
            return known, [], False
    except CorruptData as error:
        lost = error
        if not present:
            raise
    if present:
        known = find_descriptor(folder, present)
        if known is None:
            raise lost
        return known, [lost], False
    others = [name for name in names if name not in _OF_NO_STORE and not name.startswith(".")]
    if others:
        raise NotAStore(f"{folder} holds {others[0]!r} and no blob store; choose an empty folder", path=folder)
    config.check_capacity()
    size = min(config.segment_bytes, config.capacity_bytes)
    return Descriptor(new_incarnation(), size, config.capacity_bytes // size, milliseconds(clock.now())), [], True


def find_descriptor(folder: str, names: Iterable[SegmentName]) -> Descriptor | None:
    """Return what the segments' headers say of their store; `None` if none of them can be read."""
    for name in sorted(names):
        with contextlib.suppress(CorruptData, StorageError):
            return Descriptor.of_header(SegmentFile(os.path.join(folder, name.log_file)).header)
    return None


def _write_descriptor(files: Files, folder: str, descriptor: Descriptor, *, is_new: bool) -> None:
    try:
        write_descriptor(files, folder, descriptor)
    except DiskFull:
        # The segments say the same; the next opening tries again.
        if is_new:
            raise


def _has_evidence(names: Iterable[str]) -> bool:
    """Whether the folder of a store without segments has had some."""
    return any(name == STATE_NAME or segment_of_index_file(name) is not None for name in names)


def _settle_step(files: Files, folder: str, descriptor: Descriptor, found: FoundList, present: set[SegmentName],
                 ) -> tuple[FoundList, list[CorruptData], bool]:
    """Finish the last step of a compaction, or take it back.

    Returns:
        The list afterwards, the damage of its outputs, and whether sources are kept for that.
    """
    step = None if found.list is None else found.list.step
    if found.list is None or step is None or not present.intersection(step.sources):
        return found, [], False
    if any(each.name not in present for each in step.outputs):
        return found, [], not present.issuperset(step.sources)
    lists = SegmentListFile(files, folder, descriptor.log_segments, found.list)
    try:
        try:
            lists.write(found.list)
        except DiskFull:
            with contextlib.closing(files.open(os.path.join(folder, FILE_NAME))) as out:
                out.sync()
        damage = [error for error in (_check(folder, descriptor, each) for each in step.outputs) if error is not None]
        if not damage:
            remove_segments(files, folder, step.sources)
        elif present.issuperset(step.sources):
            undone = lists.known.without_step()
            with contextlib.suppress(DiskFull):
                lists.write(undone)
            return attrs.evolve(found, list=attrs.evolve(undone, number=lists.known.number)), damage, False
        return attrs.evolve(found, list=lists.known), damage, bool(damage)
    finally:
        lists.close()


def _check(folder: str, descriptor: Descriptor, output: Output) -> CorruptData | None:
    """Read an output whole; return what is wrong with it."""
    path = os.path.join(folder, output.name.log_file)
    try:
        with contextlib.closing(SegmentFile(path)) as file:
            size = file.size()
            if attrs.evolve(file.header, first_sequence=0) != descriptor.header(output.name) or size != output.end:
                raise CorruptData(path=path, offset=0, expected=f"new segment {output.name} of {output.end} bytes",
                                  found=f"segment {file.header.name} of {size} bytes")
            found = list(scan_records(file, SEGMENT_HEADER_BYTES, output.end))
            bad = [each for each in found if not isinstance(each, ScannedRecord) or not each.whole]
            if bad or len(found) != output.records:
                raise CorruptData(path=path, offset=bad[0].offset if bad else size,
                                  expected=f"{output.records} whole records", found=f"{len(found)}, {len(bad)} damaged")
    except CorruptData as error:
        return error
    return None


def _remove_leftovers(files: Files, folder: str, names: Sequence[str]) -> None:
    if names:
        remove_names(files, folder, names)
        files.sync_folder(folder)


def _write_rebuilt(files: Files, folder: str, descriptor: Descriptor, loaded: Iterable[LoadedSegment]
                   ) -> list[tuple[str, dict[str, object]]]:
    """Write the indexes of sealed segments that were made again; what the disk refuses is made again at the next
    opening."""
    refused: list[tuple[str, dict[str, object]]] = []
    for each in loaded:
        if each.is_rebuilt and each.open is None:
            try:
                replace_parts(files, folder, each.segment.index, descriptor.incarnation)
            except StorageError as error:
                refused.append(("blobstore_index_not_written", {"folder": folder, "index": str(each.segment.name),
                                                                "error": str(error)}))
    return refused


def _begin_segment(files: Files, folder: str, descriptor: Descriptor, loaded: Sequence[LoadedSegment]) -> LoadedSegment:
    """Begin the active segment of a new store, or of one that has lost it."""
    name = loaded[-1].segment.name.next_position if loaded else FIRST_SEGMENT
    last = max((each.segment.info.last_sequence for each in loaded), default=0)
    header = descriptor.header(name, last + 1 + MAX_UNSYNCED_RECORDS if last else 0)
    path = os.path.join(folder, name.log_file)
    if look_at(path) is not None:
        files.unlink(path)
    with contextlib.closing(create_segment(files, path, header)) as out:
        out.sync()
    files.sync_folder(folder)
    return LoadedSegment(LogSegment(name, SEGMENT_HEADER_BYTES), header, OpenIndex(name, SEGMENT_HEADER_BYTES))


def _settle_tail(files: Files, folder: str, active: LoadedSegment) -> None:
    """Cut off what was never acknowledged; what is answered from now on has to be on the disk."""
    assert active.open is not None
    with contextlib.closing(files.open(os.path.join(folder, active.segment.name.log_file))) as out:
        if active.size > active.open.end:
            out.truncate(active.open.end)
        out.sync()
