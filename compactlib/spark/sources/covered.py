# SPDX-License-Identifier: Apache-2.0
"""`compactlib.raftlog.covered`: a stream of segments that a snapshot has come to cover: what compactions wait for.

Only what a snapshot covers can hold anything dead, so a log is worth a look when enough of its segments have come to be
covered since the last one. How far that was is the stream's offset, which Spark keeps in its checkpoint: a stream that
is started again goes on from there, and a batch that is repeated names the same segments.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import attrs
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from compactlib.errors import Busy, InvalidInput
from compactlib.files.disk import local_path
from compactlib.raftlog import LogReader
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.snapshot_meta import SnapshotVersion, snapshot_version
from compactlib.spark.sources.table_source import Option, values_of, whole


@attrs.frozen
class CoveredSegment:
    """A segment that nothing is written to any more, of which the last snapshot covers every entry: the columns of a
    row behind the folder. Its size is 0 if its file has gone meanwhile."""

    segment: int
    first: int
    last: int
    size_bytes: int
    snapshot: int


@attrs.frozen
class LogLook:
    """What was seen of a log: its newest segment (0 if there is none), which is being written, and what is covered."""

    newest: int = 0
    covered: tuple[CoveredSegment, ...] = ()


@attrs.frozen
class StreamOptions:
    """Which logs, and how many segments, or bytes of them, have come to be covered when one of them is reported."""

    folders: tuple[str, ...]
    min_segments: int = 4
    min_bytes: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """The options of a stream, as text. Raises what `values_of` does."""
        values = values_of(options, {
            "folders": Option("folders", _folders, "a list in JSON of at least one folder"),
            "path": Option("folders", lambda text: (local_path(text),)),
            **{name: whole(name, "a threshold of at least 1", 1) for name in ("min_segments", "min_bytes")}})
        if "folders" not in values:
            raise InvalidInput("which logs? Give their folders as a list in JSON (option folders), or the path of one")
        return cls(**values)


def _folders(text: str) -> tuple[str, ...]:
    found = json.loads(text)
    if not isinstance(found, list) or not found or not all(isinstance(folder, str) for folder in found):
        raise ValueError(found)
    return tuple(map(local_path, found))


def crossed(start: Mapping[str, int], found: Mapping[str, LogLook], options: StreamOptions) -> dict[str, int]:
    """Where a batch ends that begins at `start`: it takes in the logs that have crossed a threshold. Pure."""
    end = dict(start)
    for folder, look in found.items():
        told = start.get(folder, 0)
        # Where a log does not reach what was reported any more, it was removed and begun anew, and all of it is new.
        new = [each for each in look.covered if each.segment > told or look.newest <= told]
        enough = options.min_bytes is not None and sum(each.size_bytes for each in new) >= options.min_bytes
        if new and (enough or len(new) >= options.min_segments):
            end[folder] = new[-1].segment
    return end


def between(start: Mapping[str, int], end: Mapping[str, int], found: Mapping[str, LogLook],
            ) -> Iterator[tuple[str, int, int, int, int, int]]:
    """The rows of a batch, of those segments that are still there. Pure."""
    for folder, last in sorted(end.items()):
        told = start.get(folder, 0)
        if told != last and folder in found:
            for each in found[folder].covered:
                if (told if told < last else 0) < each.segment <= last:
                    yield folder, *attrs.astuple(each)


def look_at_log(folder: str) -> LogLook:
    """What is covered in a log; nothing if there is no log. Raises what `LogReader` does."""
    try:
        log = LogReader(folder)
    except NotALog:
        return LogLook()
    with log:
        refs, snapshot = log.refs, log.snapshot
        return LogLook(refs[-1].number if refs else 0, () if snapshot is None else tuple(
            CoveredSegment(ref.number, ref.first, ref.last, _size(folder, ref.number), snapshot.index)
            for ref in refs[:-1] if ref.last <= snapshot.index))


def _size(folder: str, number: int) -> int:
    try:
        return os.stat(os.path.join(folder, segment_name(number))).st_size
    except FileNotFoundError:
        return 0


class CoveredSource(DataSource):
    """Segments that a snapshot has come to cover, log by log, once enough of them have."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = StreamOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        return "compactlib.raftlog.covered"

    def schema(self) -> str:
        return "folder string, segment bigint, first bigint, last bigint, bytes bigint, snapshot bigint"

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
        """Looks at the logs, in a process of the driver's: its rows are few."""
        return CoveredReader(self._parsed)


class CoveredReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream as PySpark asks for it: offsets say by folder which segment was the highest that was reported."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._seen: dict[str, tuple[SnapshotVersion | None, LogLook]] = {}
        self._last_look: dict[str, LogLook] | None = None

    def look(self) -> dict[str, LogLook]:
        """What each log is like now. A stat a log, and of those that changed the index of each segment."""
        for folder in self._options.folders:
            version = snapshot_version(folder)
            if folder not in self._seen or self._seen[folder][0] != version:
                # What changes faster than it can be looked at waits for the next look.
                with contextlib.suppress(Busy):
                    self._seen[folder] = version, look_at_log(folder)
        return {folder: look for folder, (_, look) in self._seen.items()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing that comes later is reported."""
        self._last_look = self.look()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        """What has crossed a threshold since `start`, and where that ends."""
        found = self.look() if self._last_look is None else self._last_look
        end = crossed(start, found, self._options)
        # Not the generator itself: Spark copies what it is given.
        return iter(list(between(start, end, found))), end

    def readBetweenOffsets(  # noqa: N802
            self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The rows of a batch that is repeated after a crash, of what is still there."""
        return between(start, end, self.look())
