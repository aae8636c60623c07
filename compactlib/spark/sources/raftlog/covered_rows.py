# SPDX-License-Identifier: Apache-2.0
"""Segments of Raft logs that a snapshot has come to cover: what a stream of compactions waits for.

Only what a snapshot covers can hold anything dead, so a log is worth a look when enough of its segments have come to be
covered since the last one. How far that was is the stream's offset, which Spark keeps in its checkpoint: a stream that
is started again goes on from there, and a batch that is repeated names the same segments.

The functions here know nothing of Spark; `covered_source` is the stream.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from compactlib.errors import Busy, InvalidInput
from compactlib.files.disk import local_path
from compactlib.raftlog import LogReader
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.model.snapshot_meta import SnapshotVersion, snapshot_version
from compactlib.spark.sources.source_options import given_options

COLUMNS: tuple[tuple[str, str], ...] = (("folder", "string"), ("segment", "bigint"), ("first", "bigint"),
                                        ("last", "bigint"), ("bytes", "bigint"), ("snapshot", "bigint"))
"""Names and Spark SQL types of the stream's rows."""

DEFAULT_MIN_SEGMENTS = 4

Offsets: TypeAlias = Mapping[str, int]
"""By folder, the highest segment that was reported."""


@attrs.frozen
class CoveredSegment:
    """A segment that nothing is written to any more, of which the last snapshot covers every entry.

    Attributes:
        segment: its number.
        first: its lowest index.
        last: its highest index.
        size_bytes: the size of its file; 0 if that has gone meanwhile.
        snapshot: the index of the snapshot.
    """

    segment: int
    first: int
    last: int
    size_bytes: int
    snapshot: int


@attrs.frozen
class LogLook:
    """What was seen of a log.

    Attributes:
        newest: the number of its newest segment, which is being written; 0 if there is none.
        covered: what is covered, ascending.
    """

    newest: int = 0
    covered: tuple[CoveredSegment, ...] = ()

    def after(self, told: int) -> list[CoveredSegment]:
        """What is covered above the highest segment that was reported. Where the log does not reach that any more, it
        was removed and begun anew, and all of it is new."""
        return [each for each in self.covered if each.segment > told or self.newest <= told]


@attrs.frozen
class StreamOptions:
    """Which logs, and when one of them is reported.

    Attributes:
        folders: the logs.
        min_segments: so many segments have come to be covered since it was reported last, or
        min_bytes: so many bytes of them; `None` if their number alone decides.
    """

    folders: tuple[str, ...]
    min_segments: int = DEFAULT_MIN_SEGMENTS
    min_bytes: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """The options of a stream, as text: `folders` a list in JSON, or the one log that `path` names.

        Raises:
            InvalidInput: an option is unknown or makes no sense.
        """
        given = given_options(options, ("path", "folders", "min_segments", "min_bytes"), None)
        try:
            folders = json.loads(given["folders"]) if "folders" in given else [given["path"]]
            numbers = [int(given.get("min_segments", DEFAULT_MIN_SEGMENTS)), int(given.get("min_bytes", 1))]
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"options {given!r}: give folders as a list in JSON (or the path of one), min_segments "
                               f"and min_bytes as numbers") from error
        if not folders or not all(isinstance(folder, str) for folder in folders) or min(numbers) < 1:
            raise InvalidInput(f"options {given!r}: give at least one folder, and thresholds of at least 1")
        return cls(tuple(map(local_path, folders)), numbers[0],
                   numbers[1] if "min_bytes" in given else None)

    def told(self) -> dict[str, str]:
        """The options as text again."""
        sizes = {} if self.min_bytes is None else {"min_bytes": str(self.min_bytes)}
        return {"folders": json.dumps(self.folders), "min_segments": str(self.min_segments), **sizes}


def crossed(start: Offsets, found: Mapping[str, LogLook], options: StreamOptions) -> dict[str, int]:
    """Where a batch ends that begins at `start`: it takes in the logs that have crossed a threshold. Pure."""
    end = dict(start)
    for folder, look in found.items():
        new = look.after(start.get(folder, 0))
        enough = options.min_bytes is not None and sum(each.size_bytes for each in new) >= options.min_bytes
        if new and (enough or len(new) >= options.min_segments):
            end[folder] = new[-1].segment
    return end


def between(start: Offsets, end: Offsets,
            found: Mapping[str, LogLook]) -> Iterator[tuple[str, int, int, int, int, int]]:
    """The rows of a batch, of those segments that are still there. Pure."""
    for folder, last in sorted(end.items()):
        told = start.get(folder, 0)
        if told != last and folder in found:
            for each in found[folder].covered:
                if (told if told < last else 0) < each.segment <= last:
                    yield folder, *attrs.astuple(each)


class CoveredLooks:
    """Looks at logs, and looks again only at those that have a new snapshot since.

    Args:
        folders: the logs; one that does not exist yet has no segments.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders: Sequence[str] = folders
        self._seen: dict[str, tuple[SnapshotVersion | None, LogLook]] = {}

    def look(self) -> dict[str, LogLook]:
        """What each log is like now, by its folder. A stat a log, and of those that changed the index of each segment.

        Raises:
            CorruptData, Unsupported: a log cannot be read.
            StorageError: the disk refused.
        """
        for folder in self._folders:
            version = snapshot_version(folder)
            if folder not in self._seen or self._seen[folder][0] != version:
                try:
                    self._seen[folder] = version, look_at_log(folder)
                except Busy:
                    # It changes faster than it can be looked at; the next look will do.
                    continue
        return {folder: look for folder, (_, look) in self._seen.items()}


def look_at_log(folder: str) -> LogLook:
    """What is covered in a log; nothing if there is no log. Nothing is locked or written.

    Raises:
        Busy, CorruptData, Unsupported, StorageError: as for `LogReader`.
    """
    try:
        log = LogReader(folder)
    except NotALog:
        return LogLook()
    with log:
        refs, snapshot = log.refs, log.snapshot
        if snapshot is None or not refs:
            return LogLook(refs[-1].number if refs else 0)
        return LogLook(refs[-1].number, tuple(
            CoveredSegment(ref.number, ref.first, ref.last, _size(folder, ref.number), snapshot.index)
            for ref in refs[:-1] if ref.last <= snapshot.index))


def _size(folder: str, number: int) -> int:
    try:
        return os.stat(os.path.join(folder, f"{number:016d}.segment")).st_size
    except FileNotFoundError:
        return 0
