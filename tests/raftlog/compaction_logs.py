# SPDX-License-Identifier: Apache-2.0
"""Logs for the tests of compaction: how they are built, and what must be readable in them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.errors import CompactionFailed, CompactlibError, CorruptData
from compactlib.executors import Attempt, RewrittenFile
from compactlib.files import Files, LocalFiles
from compactlib.indexset import IndexSet
from compactlib.observer import Observers
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    LogOptions,
    LogReader,
    MissingEntry,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.compaction.commit import check_rewritten, finish_groups, place_leader
from compactlib.raftlog.compaction.report import LogCompactionReport
from compactlib.raftlog.compaction.rewrite import CompactSegments, Copier, SegmentSource
from compactlib.raftlog.names import is_leftover, segment_name, segment_number
from compactlib.raftlog.segment.reader import SegmentReader

SMALL = SegmentLimits(max_entries=16)


def payload_of(index: int, term: int = 1) -> bytes:
    """Return a payload with length and bytes of its index; each fifth is empty."""
    return b"" if index % 5 == 0 else b"%d in %d, " % (index, term) * (1 + index % 3)


def entry_of(index: int, term: int = 1) -> Entry:
    """The entry that these tests write for an index."""
    return Entry(index, term, payload_of(index, term))


def entries_of(first: int, last: int, term: int = 1) -> list[Entry]:
    """The entries of a range of indexes."""
    return [entry_of(index, term) for index in range(first, last + 1)]


def options(files: Files | None = None, **changes: Any) -> LogOptions:
    """Small segments, and old names that stay, however long a test takes or is held up."""
    chosen: dict[str, Any] = {"limits": SMALL, "keep_links_seconds": math.inf, **changes}
    if files is not None:
        chosen["files"] = files
    return LogOptions(**chosen)


def done(report: LogCompactionReport) -> LogCompactionReport:
    """The report of a compaction that did something, each group of it."""
    assert not report.is_empty
    assert not report.failed, report.failed
    assert report.unreclaimed is None
    return report


def failed(log: SegmentLog, **given: Any) -> tuple[LogCompactionReport, list[CompactlibError]]:
    """The report and the failures of a compaction that fails in part."""
    with pytest.raises(CompactionFailed) as caught:
        log.compact(policy=log.policy, **given)
    report: LogCompactionReport = caught.value.report
    return report, list(caught.value.failures.values())


def damaged(log: LogReader | SegmentLog) -> list[CorruptData]:
    """What reading everything finds damaged or missing."""
    return [finding.error for finding in log.verify().findings if isinstance(finding.error, CorruptData)]


def compact_to_rest(log: SegmentLog) -> int:
    """Major compactions until there is nothing to do; how many did something."""
    for count in range(10):
        report = log.compact(policy=log.policy)
        if report.is_empty:
            return count
        done(report)
    raise AssertionError("compaction does not reach a state without work")


@attrs.frozen
class Expected:
    """The expected answers of a log.

    Attributes:
        entries: all that must be readable, by index.
        snapshot: at or below it everything else is dead; -1 before the first.
    """

    entries: Mapping[int, Entry]
    snapshot: int = -1

    @classmethod
    def of(cls, entries: Iterable[Entry], snapshot: int = -1, live: Iterable[int] = ()) -> Expected:
        """Return the rest of `entries` (later ones win) after a snapshot."""
        kept = set(live)
        written = {entry.index: entry for entry in entries}
        return cls({index: entry for index, entry in sorted(written.items()) if index > snapshot or index in kept},
                   snapshot)

    def answer(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """Return the expected answer to a read of `index`."""
        if index in self.entries:
            return self.entries[index]
        return DeadEntry(index, self.snapshot) if index <= self.snapshot else MissingEntry(index)

    def check(self, log: LogReader | SegmentLog) -> None:
        """Every way of reading gives the right answer for every index, dead and missing ones included."""
        end = max([self.snapshot, *self.entries]) + 2
        for index in range(end + 1):
            assert log.read(index) == self.answer(index), index
        assert list(log.read_many(range(end + 1))) == [self.answer(index) for index in range(end + 1)]
        assert list(log.entries()) == list(self.entries.values())
        assert log.verify().is_sound

    def check_live(self, log: LogReader | SegmentLog) -> None:
        """As `check`, but cheaper: single reads only."""
        for index in range(max([self.snapshot, *self.entries]) + 2):
            assert log.read(index) == self.answer(index), index


def vector_45(folder: Path, live: Sequence[int] = (1, 2, 20, 40)) -> Expected:
    """Three segments of 16 entries and a newest with one; the snapshot is at 48."""
    return filled(folder, last=49, snapshot=48, live=live)


def filled(folder: Path, *, last: int, snapshot: int, live: Sequence[int], **changes: Any) -> Expected:
    """A log of segments of 16 entries, 1 to `last`, with a snapshot."""
    with SegmentLog(folder, options(**changes)) as log:
        log.append(entries_of(1, last))
        log.snapshot(snapshot, live)
    return Expected.of(entries_of(1, last), snapshot, live)


def chained(folder: Path) -> Expected:
    """Segments 1 and 3, each merged from two before, with links 2 and 4 from then, and three more that died since.

    A major compaction now merges 1, 3 and more: its leader is an earlier leader, and 4 leads to 1 by way of 3.
    """
    with SegmentLog(folder, options(policy=SeedPolicy(max_sources=2))) as log:
        log.append(entries_of(1, 65))
        log.snapshot(64, [1, 2, 20, 40, 41, 60])
        done(log.compact(policy=log.policy))
        assert [ref.number for ref in log.refs] == [1, 3, 5]
        log.append(entries_of(66, 97))
        log.snapshot(96, [2, 40, 60, 70, 96])
    return Expected.of(entries_of(1, 97), 96, [2, 40, 60, 70, 96])


def dead_leader(folder: Path) -> Expected:
    """Segment 1, merged from three, has died with its links 2 and 3; something lives in 4 and 6, nothing in 5."""
    with SegmentLog(folder, options(policy=SeedPolicy(max_sources=3))) as log:
        log.append(entries_of(1, 64))
        log.snapshot(48, [1, 20, 40])
        done(log.compact(policy=log.policy))
        assert [ref.number for ref in log.refs] == [1, 4]
        log.append(entries_of(65, 113))
        log.snapshot(112, [50, 51, 90, 112])
    return Expected.of(entries_of(1, 113), 112, [50, 51, 90, 112])


def overwritten(folder: Path) -> Expected:
    """Segments in which a new leader took entries back, within a segment and across two, before all was committed."""
    with SegmentLog(folder, options()) as log:
        log.append(entries_of(1, 40))
        log.append(entries_of(28, 60, term=2))
        log.append(entries_of(55, 81, term=3))
        log.sync()
        log.snapshot(80, [3, 28, 30, 54, 55, 80])
    written = [*entries_of(1, 27), *entries_of(28, 54, 2), *entries_of(55, 81, 3)]
    return Expected.of(written, 80, [3, 28, 30, 54, 55, 80])


def sources_of(folder: Path, members: Iterable[int], live: Iterable[int]) -> tuple[SegmentSource, ...]:
    """Return a task's input for these segments."""
    wanted = IndexSet.from_sorted(sorted(live))
    with LogReader(folder) as log:
        refs = {ref.number: ref for ref in log.refs}
    return tuple(SegmentSource(str(folder / segment_name(number)), refs[number],
                               wanted.between(refs[number].first, refs[number].last)) for number in members)


def task_of(folder: Path, members: Sequence[int], live: Iterable[int], *, into: Path,
            files: Files | None = None) -> CompactSegments:
    """The task that merges these segments into a file in `into`."""
    return CompactSegments(name=segment_name(members[0]), private=f"{into}/", sources=sources_of(folder, members, live),
                           max_bytes=1 << 20, files=LocalFiles() if files is None else files)


def rewritten(folder: Path, members: Sequence[int], live: Iterable[int]) -> RewrittenFile:
    """The finished output of a task."""
    return task_of(folder, members, live, into=folder).run(Attempt("1", Budget(), Observers())).files[0]


def commit_group(files: Files, folder: Path, members: Sequence[int], file: RewrittenFile) -> None:
    """All steps of a commit, one after the other, of a file with its final content."""
    with SegmentReader(file.path) as reader:
        live = reader.index.index_set()
    check_rewritten(file, members, [live], Copier())
    place_leader(files, folder, members, file.path)
    finish_groups(files, folder, [members])


def strays(folder: Path) -> list[str]:
    """Names that no log at rest has."""
    return [name for name in sorted(os.listdir(folder))
            if is_leftover(name) or name.endswith(".compacting")]


def picture(folder: Path) -> dict[str, bytes | str]:
    """Every name in the folder and below: the bytes of a file, the text of a link. The lock file aside."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = os.readlink(path)
        elif path.is_file() and path.name != "LOCK":
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def resolved(folder: Path) -> dict[str, bytes | str]:
    """As `picture`, but a link is shown as the file at the end of its chain."""
    return {name: os.path.relpath(os.path.realpath(folder / name), os.path.realpath(folder)) if isinstance(content, str)
            else content for name, content in picture(folder).items()}


def links(folder: Path) -> dict[int, str]:
    """Return the links in a folder: number to target."""
    return {number: os.readlink(folder / name) for name in sorted(os.listdir(folder))
            if (number := segment_number(name)) is not None and os.path.islink(folder / name)}


def payload_place(folder: Path, number: int, index: int) -> int:
    """Where in the file of a segment the first payload byte of an entry lies."""
    with SegmentReader(folder / segment_name(number)) as reader:
        return reader.index.offsets[reader.index.find(index)]


def flip_byte(path: Path, place: int) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def answers(log: LogReader | SegmentLog, indexes: Iterable[int]) -> list[type]:
    """What kind of answer each index gets."""
    return [type(answer) for answer in log.read_many(list(indexes))]
