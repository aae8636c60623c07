# SPDX-License-Identifier: Apache-2.0
"""The heavy step of a compaction: copy the live entries of adjacent segments into one new segment.

Only live payloads are read (with the small gaps between them), each is checked against its CRC on the way, and one
fsync makes the whole file durable. Knows nothing of the log it works for: a task can run in any process that sees the
folder, twice, or at the same time as another try; each writes its own file and publishes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain

import attrs

from compactlib.errors import InvalidInput, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles, OutFile
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.values import SegmentLimits, SegmentRef
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.index import picked
from compactlib.raftlog.segment.liveness import live_positions
from compactlib.raftlog.segment.reader import PickedPayloads, SegmentReader, Span, read_payloads
from compactlib.raftlog.segment.spans import MAX_SPAN_BYTES
from compactlib.rewrite import Attempt, RewriteResult, RewrittenFile
from compactlib.runtime.observe import Progress


@attrs.frozen
class SegmentSource:
    """One segment to copy from.

    Attributes:
        path: its file.
        ref: the range of it that counts.
        live: the indexes to keep, all within the range.
    """

    path: str
    ref: SegmentRef
    live: IndexSet


@attrs.frozen(kw_only=True)
class CompactSegments:
    """A `RewriteTask` that writes the live entries of `sources` to one sealed segment in `folder`.

    Attributes:
        name: the task's name; also the beginning of the new file's private name.
        folder: where the new file goes; must exist.
        sources: oldest first; their live indexes ascend from one to the next.
        max_bytes: the limit to note in the new segment.
        files: the disk.
    """

    name: str
    folder: str
    sources: tuple[SegmentSource, ...]
    max_bytes: int
    files: Files = attrs.field(factory=LocalFiles)

    def run(self, attempt: Attempt) -> RewriteResult:
        """Copy, check and sync; see `RewriteTask.run`.

        Raises:
            CorruptData: a live entry is damaged; the new file is removed, the sources are untouched.
            LiveIndexMissing: a live index is not in its segment; likewise.
            StorageError: the disk refused; likewise.
            BudgetSpent: the budget ran out; likewise.
        """
        began = attempt.clock.monotonic()
        path = os.path.join(self.folder, f"{self.name}.{attempt.id}")
        with contextlib.ExitStack() as stack:
            parts = [_Part.open(source, stack) for source in self.sources]
            out = self.files.create(path)
            try:
                try:
                    file, bytes_read = self._write(out, parts, attempt)
                finally:
                    out.close()
            except BaseException:
                with contextlib.suppress(StorageError):
                    self.files.unlink(path)
                raise
        return RewriteResult(task=self.name, attempt=attempt.id, files=(file,), bytes_read=bytes_read,
                             bytes_written=file.size_bytes, seconds=attempt.clock.monotonic() - began)

    def _write(self, out: OutFile, parts: Sequence[_Part], attempt: Attempt) -> tuple[RewrittenFile, int]:
        count = sum(len(part.picked.positions) for part in parts)
        if not count:
            raise InvalidInput(f"task {self.name!r} has no live entry to copy; drop its segments instead")
        limits = SegmentLimits(max_entries=count, max_bytes=self.max_bytes)
        header = native.Header(self.sources[0].ref.number, limits)
        work, total = f"compact {self.name}", sum(sum(part.picked.lengths) for part in parts)
        attempt.observer.progress(Progress(work, 0, total))
        end, bytes_read = header.data_start, 0
        scratch = bytearray(MAX_SPAN_BYTES)
        for span in chain.from_iterable(part.copied(scratch) for part in parts):
            attempt.budget.spend(span.live_bytes)
            # One piece per entry: joining neighbours in Python costs more than the longer list costs the kernel.
            end += out.write_at(end, span.payloads)
            bytes_read += len(span.buffer)
            attempt.observer.progress(Progress(work, end - header.data_start, total))
        records = _encode_index(parts, header.data_start)
        seal = native.Seal(count, end, crc32(records, 0), sealed=True, ascending=True)
        # Durable as a whole or not at all, so that both seals may say the same.
        out.write_at(0, [native.encode_start(header, seal, attrs.evolve(seal, sequence=1)), records])
        out.sync()
        return RewrittenFile(out.path, end, count, seal.index_crc), bytes_read


@attrs.define(eq=False)
class _Part:
    """What one source contributes: which positions are copied, and the checksums they get in the new file."""

    reader: SegmentReader
    picked: PickedPayloads
    heads: list[int] = attrs.field(factory=list)
    crcs: list[int] = attrs.field(factory=list)

    @classmethod
    def open(cls, source: SegmentSource, stack: contextlib.ExitStack) -> _Part:
        reader = stack.enter_context(SegmentReader(source.path))
        return cls(reader, PickedPayloads.of(reader.index, live_positions(reader.index, source.live, source.ref)))

    def copied(self, scratch: bytearray) -> Iterator[Span]:
        if self.reader.format == "native":
            self.heads.extend(self.picked.heads)
            self.crcs.extend(self.picked.crcs)
        for span in read_payloads(self.reader.fileno(), self.picked, scratch):
            if span.damaged:
                raise self.reader.damage_at(span.damaged[0])
            if self.reader.format != "native":
                self._checksum_anew(span)
            yield span

    def _checksum_anew(self, span: Span) -> None:
        columns = self.reader.index.columns
        for position, payload in zip(span.positions, span.payloads, strict=True):
            head = native.head_crc(columns.indexes[position], columns.terms[position], len(payload))
            self.heads.append(head)
            self.crcs.append(crc32(payload, head))


def _encode_index(parts: Sequence[_Part], data_start: int) -> bytes:
    def joined(columns: Iterable[Sequence[int]]) -> list[int]:
        return list(chain.from_iterable(columns))

    lengths = joined(part.picked.lengths for part in parts)
    offsets = list(accumulate(lengths[:-1], initial=data_start))
    return native.encode_records(
        joined(picked(part.reader.index.columns.indexes, part.picked.positions) for part in parts),
        joined(picked(part.reader.index.columns.terms, part.picked.positions) for part in parts),
        lengths, joined(part.heads for part in parts), offsets, joined(part.crcs for part in parts))
