# SPDX-License-Identifier: Apache-2.0
"""Names of log segments and of their files: `position_generation`, ordered as numbers.

A compaction reuses the positions of its sources, with a higher generation. So one segment has a position at a time, and
the file names of two generations differ.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOG_SUFFIX, INDEX_SUFFIX = ".log", ".index"
UNPUBLISHED_SUFFIX = ".temp"
"""Suffix of a file that a copying attempt writes."""
HALF_WRITTEN_SUFFIX = ".tmp"
"""Suffix of a file that `write_durably` writes, until it is renamed."""
MAX_NUMBER = (1 << 63) - 1
"""The largest position, generation or offset."""
MIN_SEGMENT_BYTES = 1024
"""The smallest capacity of a segment."""
MAX_SEGMENTS = 1 << 20
"""The most segments of a log: the list of so many takes 16 MiB, and is written with each new segment."""

_FILE = re.compile(r"(0|[1-9][0-9]{0,18})_(0|[1-9][0-9]{0,18})(.*)", re.DOTALL)
_PRIVATE = re.compile(rf"\.(log.*\{UNPUBLISHED_SUFFIX}|index\{HALF_WRITTEN_SUFFIX})", re.DOTALL)


class SegmentName(NamedTuple):
    """The name of a log segment; `10_0` comes after `2_0`.

    Attributes:
        position: its place in the log, >= 0.
        generation: the number of compactions of its position, >= 0.
    """

    position: int
    generation: int

    @property
    def next_position(self) -> SegmentName:
        """The name of the segment that the log appends after this one: the next position, generation 0."""
        return SegmentName(self.position + 1, 0)

    @property
    def log_file(self) -> str:
        """The file name of the segment."""
        return f"{self}{LOG_SUFFIX}"

    @property
    def index_file(self) -> str:
        """The file name of the segment's index."""
        return f"{self}{INDEX_SUFFIX}"

    def __str__(self) -> str:
        return f"{self.position}_{self.generation}"


FIRST_SEGMENT = SegmentName(0, 0)
"""The first segment of a new store."""


def segment_of_log_file(file_name: str) -> SegmentName | None:
    """Return the segment of a log file; `None` for every other file, such as an unpublished one."""
    return _named(file_name, LOG_SUFFIX)


def segment_of_index_file(file_name: str) -> SegmentName | None:
    """Return the segment of an index file; `None` for every other file."""
    return _named(file_name, INDEX_SUFFIX)


def is_private(file_name: str) -> bool:
    """Whether a file of a segment was written by an attempt that has not published it."""
    found = _FILE.fullmatch(file_name)
    return found is not None and _PRIVATE.fullmatch(found[3]) is not None


def _named(file_name: str, suffix: str) -> SegmentName | None:
    found = _FILE.fullmatch(file_name)
    return SegmentName(int(found[1]), int(found[2])) if found is not None and found[3] == suffix else None
