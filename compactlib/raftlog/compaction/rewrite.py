# SPDX-License-Identifier: Apache-2.0
"""The task of a compaction: copy the live entries of adjacent segments into a new segment.

It reads only live payloads (with the small gaps between them), checks each against its CRC, and makes the whole file
durable with one fsync. It does not need the log: it can run in any process that sees the folder, twice, or at the same
time as another attempt; each attempt writes its own file and commits nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import chain

import attrs

from compactlib.errors import InvalidInput, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles, OutFile
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.copier import Copier, Part
from compactlib.raftlog.model.values import SegmentLimits, SegmentRef
from compactlib.raftlog.segment import format as native
from compactlib.rewrite import Attempt, RewriteResult, RewrittenFile


@attrs.frozen
class SegmentSource:
    """A segment to copy from.

    Attributes:
        path: its file.
        ref: its range.
        live: the indexes to keep, all within the range.
    """

    path: str
    ref: SegmentRef
    live: IndexSet


@attrs.frozen(kw_only=True)
class CompactSegments:
    """A `RewriteTask` that writes the live entries of `sources` to one sealed segment at a private path.

    Attributes:
        name: the task's name, which is the new segment's; the private file's name has it too.
        private: the beginning of the private file's path, which no other run has.
        sources: oldest first; their live indexes ascend from one to the next.
        max_bytes: the limit in the new segment's header.
        files: the disk.
    """

    name: str
    private: str
    sources: tuple[SegmentSource, ...]
    max_bytes: int
    files: Files = attrs.field(factory=LocalFiles)

    @property
    def source_files(self) -> tuple[str, ...]:
        """The paths of the sources."""
        return tuple(source.path for source in self.sources)

    def run(self, attempt: Attempt) -> RewriteResult:
        """Copy, check and sync; as `RewriteTask.run`.

        Raises:
            CorruptData: a live entry is damaged; the new file is removed, the sources are untouched.
            LiveIndexMissing: a live index is not in its segment; likewise.
            StorageError: the disk refused; likewise.
            BudgetSpent: the budget is spent; likewise.
        """
        began = attempt.clock.monotonic()
        path = f"{self.private}{self.name}.{attempt.id}"
        with contextlib.ExitStack() as stack:
            copier = Copier()
            parts = [copier.part(stack, source.path, source.live, source.ref) for source in self.sources]
            out = self.files.create(path)
            try:
                try:
                    file, bytes_read = self._write(out, copier, parts, attempt)
                    out.sync()
                finally:
                    out.close()
            except BaseException:
                with contextlib.suppress(StorageError):
                    self.files.unlink(path)
                raise
        return RewriteResult(task=self.name, attempt=attempt.id, files=(file,), bytes_read=bytes_read,
                             bytes_written=file.size_bytes, seconds=attempt.clock.monotonic() - began)

    def _write(self, out: OutFile, copier: Copier, parts: Sequence[Part],
               attempt: Attempt) -> tuple[RewrittenFile, int]:
        count = sum(map(len, parts))
        if not count:
            raise InvalidInput(f"task {self.name!r} has no live entry to copy; drop its segments instead")
        limits = SegmentLimits(max_entries=count, max_bytes=self.max_bytes)
        header = native.Header(self.sources[0].ref.number, limits)
        work, total = f"compact {self.name}", sum(part.places[-1] for part in parts)
        attempt.observer.event("progress", work=work, done=0, total=total, unit="bytes")
        end, bytes_read = header.data_start, 0
        for piece, got in chain.from_iterable(map(copier.pieces, parts)):
            attempt.budget.spend(len(piece))
            end += out.write_at(end, [piece])
            bytes_read += got
            attempt.observer.event("progress", work=work, done=end - header.data_start, total=total, unit="bytes")
        records = copier.encoded_index(parts, header.data_start)
        seal = native.Seal(count, end, crc32(records, 0), sealed=True)
        # The file is durable as a whole or not used, so that both seals may be equal.
        out.write_at(0, [native.encode_start(header, seal, attrs.evolve(seal, sequence=1)), records])
        return RewrittenFile(out.path, end, count, seal.index_crc), bytes_read
