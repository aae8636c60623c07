# SPDX-License-Identifier: Apache-2.0
"""Putting together what one fsync makes durable: the bytes, and what is reported to which log. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.wal.frames import Body, FrameKind, empty_body, encode_frame, log_body


@attrs.frozen(slots=True)
class QueuedWrite:
    """A write that was accepted and waits for the next batch.

    Attributes:
        log_id: of which log.
        body: its bytes, checksummed already.
        previous: see `Frame.previous`.
        cut_after: everything above is taken back first; `None` if nothing is.
        first: the first index.
        last: the last index; below `first` if there is no entry.
        term: of the entries, the last one's if they differ.
        indexes: of sparse entries, `None` for a run.
        terms: of sparse entries, `None` for a run.
    """

    log_id: str
    body: Body
    previous: int | None
    cut_after: int | None
    first: int
    last: int
    term: int
    indexes: Sequence[int] | None = None
    terms: Sequence[int] | None = None


@attrs.frozen
class Confirmed:
    """Entries of one log and term became durable. Entries taken back in the same batch are not among them.

    Attributes:
        log_id: of which log.
        term: their term.
        indexes: which.
    """

    log_id: str
    term: int
    indexes: IndexSet


@attrs.frozen
class Batch:
    """What one write and one fsync put on the disk.

    Attributes:
        pieces: the bytes, back to back.
        size: how many.
        named: logs that this batch names in the file, with their numbers.
    """

    pieces: list[bytes]
    size: int
    named: dict[str, int]


def assemble(writes: Iterable[QueuedWrite], *, offset: int, salt: int, numbers: Mapping[str, int]) -> Batch:
    """The bytes of a batch that begins at `offset`, up to which the file is durable. O(writes).

    Args:
        writes: in the order they were accepted.
        offset: where the batch begins.
        salt: of the file.
        numbers: of the logs that the file names already; others are new, and named first.
    """
    pieces: list[bytes] = []
    size = 0
    named: dict[str, int] = {}
    for write in writes:
        number = numbers.get(write.log_id)
        if number is None:
            number = named.get(write.log_id)
        if number is None:
            number = named[write.log_id] = len(numbers) + len(named)
            body = log_body(write.log_id)
            pieces += encode_frame(body, log=number, previous=None, cuts=False, first=0, term=0, synced_end=offset,
                                   salt=salt)
            size += body.frame_bytes
        cuts = write.cut_after is not None
        pieces += encode_frame(write.body, log=number, previous=write.cut_after if cuts else write.previous, cuts=cuts,
                               first=write.first, term=write.term, synced_end=offset, salt=salt)
        size += write.body.frame_bytes
    return Batch(pieces, size, named)


def mark(offset: int, salt: int) -> list[bytes]:
    """A frame for `offset` that says that everything before is durable; the next batch is written over it."""
    return encode_frame(empty_body(FrameKind.MARK), log=0, previous=None, cuts=False, first=0, term=0,
                        synced_end=offset, salt=salt)


def confirmations(writes: Iterable[QueuedWrite]) -> list[Confirmed]:
    """What to report once a batch is durable: one index set for each log and term, in the order of first use.

    O(writes and sparse entries), whatever they take back.
    """
    written = WrittenIndexes()
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for write in writes:
        written.add(write)
        for term in (write.term,) if write.terms is None else write.terms:
            found.setdefault((write.log_id, term), [])
    for log_id, runs in written.runs.items():
        for first, last, term in runs:
            found[log_id, term].append((first, last))
    return [Confirmed(log_id, term, IndexSet.from_runs(stand)) for (log_id, term), stand in found.items() if stand]


class WrittenIndexes:
    """What stands of each log's entries. Holds runs, not entries.

    Attributes:
        runs: by log id: first index, last index and term of what was written, ascending.
    """

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[int, int, int]]] = {}

    def add(self, write: QueuedWrite) -> None:
        """The write was made. O(1) where it goes on from the one before, or takes back no more than what was added."""
        runs = self.runs.setdefault(write.log_id, [])
        # What is written lies above all that stands.
        while write.cut_after is not None and runs and runs[-1][1] > write.cut_after:
            first, _, term = runs.pop()
            if first <= write.cut_after:
                runs.append((first, write.cut_after, term))
        if write.indexes is not None and write.terms is not None:
            runs.extend((index, index, term) for index, term in zip(write.indexes, write.terms, strict=True))
        elif write.first <= write.last:
            joins = bool(runs) and runs[-1][1] + 1 == write.first and runs[-1][2] == write.term
            first = runs.pop()[0] if joins else write.first
            runs.append((first, write.last, write.term))

    def by_log(self) -> dict[str, IndexSet]:
        """The sets, whatever the terms, by log id."""
        return {log_id: IndexSet.from_runs((first, last) for first, last, _ in runs)
                for log_id, runs in self.runs.items()}
