# SPDX-License-Identifier: Apache-2.0
"""Hole punching: returning the space of dead payloads in segments that are too dense to rewrite to the file system.

Nothing but payload bytes of dead or overwritten entries becomes a hole; header, seal and index records stay, so a
segment with holes opens as before, and every live entry keeps its place and its checksum. A hole needs no record of its
own: an entry that is dead, and has zeros for its payload, was punched. So a crash at any moment does no harm.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import attrs

from compactlib.errors import BudgetSpent, CompactlibError, NotFound, StorageError, Unsupported
from compactlib.files.disk import Files, look_at, read_exactly
from compactlib.indexset.index_set import merge_positions
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import MAX_INDEX, SegmentRef
from compactlib.raftlog.segment.index import SegmentIndex, picked
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_set import SegmentSet
from compactlib.report import Printed
from compactlib.runtime.budget import Budget

BLOCK_BYTES = 4096
"""What file systems give back at once; a range that holds no whole block is not worth a hole."""
SECTOR_BYTES = 512
"""What a disk changes as a whole at least, whatever a crash does."""
DEFAULT_MIN_HOLE_BYTES = 16 * BLOCK_BYTES


@attrs.frozen
class Hole:
    """A stretch of dead payloads, back to back in the file."""

    offset: int
    length: int


@attrs.frozen(kw_only=True)
class PunchedSegment:
    """What was punched into one segment.

    Attributes:
        number: the segment.
        holes: how many.
        hole_bytes: payload bytes that read as zeros now.
        bytes_freed: how much less room the file takes on the disk.
    """

    number: int
    holes: int
    hole_bytes: int
    bytes_freed: int


@attrs.frozen(kw_only=True, repr=False)
class HoleReport(Printed):
    """What punching holes did.

    Attributes:
        snapshot_index: what was dead by this snapshot.
        segments: one for each segment that was changed, oldest first.
        failed: (segment, error) for each that could not be; its live entries are untouched.
    """

    snapshot_index: int
    segments: tuple[PunchedSegment, ...]
    failed: tuple[tuple[int, CompactlibError], ...] = ()

    @property
    def bytes_freed(self) -> int:
        """How much less room the log takes."""
        return sum(segment.bytes_freed for segment in self.segments)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a segment."""
        return [attrs.asdict(segment) for segment in self.segments]

    def _summary(self) -> str:
        failed = f", {len(self.failed)} segments failed" if self.failed else ""
        return f"{self.bytes_freed:,} bytes freed by holes in {len(self.segments)} segments at snapshot " \
               f"{self.snapshot_index}{failed}"


def plan_holes(index: SegmentIndex, data_start: int, data_end: int, state: SnapshotMeta, *,
               min_bytes: int = DEFAULT_MIN_HOLE_BYTES) -> list[Hole]:
    """The stretches between the payloads that must stay: everything above the snapshot, and what is live. Pure.

    Args:
        index: the segment's index; what was overwritten within it does not stay.
        data_start: where payloads begin.
        data_end: where they end.
        state: what is dead; a pinned entry counts as live in it.
        min_bytes: shorter stretches are left alone.

    Cost: O(entries + live runs).
    """
    live = state.live & index.index_set()
    kept = [*merge_positions(index.columns.indexes, live.members()),
            *index.positions_between(state.index + 1, MAX_INDEX)]
    offsets, lengths = picked(index.columns.offsets, kept), picked(index.columns.lengths, kept)
    holes: list[Hole] = []
    end = data_start
    # An empty payload takes no space that could be freed.
    stays = [place for place in zip(offsets, lengths, strict=True) if place[1]]
    for offset, length in (*stays, (data_end, 0)):
        if offset - end >= max(min_bytes, BLOCK_BYTES):
            holes.append(Hole(end, offset - end))
        end = max(end, offset + length)
    return holes


def punch_holes(folder: str, files: Files, segments: SegmentSet, refs: Sequence[SegmentRef], state: SnapshotMeta, *,
                leave: Collection[int], min_bytes: int, budget: Budget) -> Done[HoleReport] | Skipped | Failed:
    """Punch what `plan_holes` says into each of `refs`, the log's segments without the newest.

    Args:
        folder: the log's folder.
        files: the disk.
        segments: readers of the segments.
        refs: which; one that is not native or not sealed is passed over.
        state: what is dead, with what is pinned taken for live.
        leave: segments that a compaction will rewrite or drop anyway.
        min_bytes: see `plan_holes`.
        budget: asked before each segment, for its holes' bytes.
    """
    punched: list[PunchedSegment] = []
    failed: list[tuple[int, CompactlibError]] = []
    for ref in refs:
        if ref.number in leave:
            continue
        try:
            done = _punch_segment(folder, files, segments.reader(ref.number), ref.number, state, min_bytes, budget)
        except Unsupported as error:
            # The platform will not change from one segment to the next.
            return Failed(error)
        except BudgetSpent as error:
            # The next call goes on with the rest.
            return Failed(error, "partly" if punched else "no")
        except NotFound:
            continue
        except CompactlibError as error:
            failed.append((ref.number, error))
            continue
        punched.extend(done)
    if not punched and not failed:
        return Skipped(f"no segment that compactions leave alone has {min_bytes} dead bytes on end at snapshot "
                       f"{state.index}")
    return Done(HoleReport(snapshot_index=state.index, segments=tuple(punched), failed=tuple(failed)))


def _punch_segment(folder: str, files: Files, reader: SegmentReader, number: int, state: SnapshotMeta, min_bytes: int,
                   budget: Budget) -> list[PunchedSegment]:
    loaded = reader.loaded
    if loaded.header is None or not loaded.sealed:
        return []
    planned = plan_holes(reader.index, loaded.header.data_start, loaded.data_end, state, min_bytes=min_bytes)
    holes = [hole for hole in planned if not _is_punched(reader, hole)]
    if not holes:
        return []
    size = sum(hole.length for hole in holes)
    budget.spend(size)
    path = os.path.join(folder, segment_name(number))
    before = _blocks(path)
    out = files.open(path)
    try:
        for hole in holes:
            out.punch_hole(hole.offset, hole.length)
        # Not for safety: so that the room is given back by the time this is said.
        out.sync()
    finally:
        out.close()
    freed = (before - _blocks(path)) * 512
    return [PunchedSegment(number=number, holes=len(holes), hole_bytes=size, bytes_freed=max(freed, 0))]


def _blocks(path: str) -> int:
    found = look_at(path)
    return 0 if found is None else found.st_blocks


def _is_punched(reader: SegmentReader, hole: Hole) -> bool:
    """Whether the whole blocks of a stretch hold no data any more."""
    first = -(-hole.offset // BLOCK_BYTES) * BLOCK_BYTES
    last = (hole.offset + hole.length) // BLOCK_BYTES * BLOCK_BYTES
    if first >= last:
        return True
    try:
        return os.lseek(reader.fileno(), first, os.SEEK_DATA) >= last
    except OSError as error:
        if error.errno == errno.ENXIO:
            return True
        if error.errno == errno.EINVAL:
            return False
        raise StorageError.from_os(error, "look for holes", reader.path) from error


def is_hole(reader: SegmentReader, index: int, state: SnapshotMeta | None) -> bool:
    """Whether what looks like damage to an entry is a hole: it is dead, and zeros are what a disk sector has of it.

    Not all of it need be zeros: a crash may have left the hole half made. But a hole covers a dead payload whole, and
    sectors change as wholes, so a byte that has become zero by itself is damage.
    """
    position = reader.index.find(index)
    if state is None or position < 0 or not state.is_dead(index):
        return False
    offset, length = reader.index.columns.offsets[position], reader.index.columns.lengths[position]
    data = read_exactly(reader.fileno(), length, offset)
    return len(data) == length and any(not any(part) for part in _by_sector(data, offset))


def _by_sector(data: bytes, offset: int) -> Iterator[bytes]:
    """What each sector has of bytes that begin at `offset`."""
    begin = 0
    while begin < len(data):
        end = begin + SECTOR_BYTES - (offset + begin) % SECTOR_BYTES
        yield data[begin:end]
        begin = end
