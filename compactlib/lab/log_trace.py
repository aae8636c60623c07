# SPDX-License-Identifier: Apache-2.0
"""The entries of a Raft log as a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol

import attrs

from compactlib._arguments import is_above
from compactlib.lab.operations import DELETE, FOREVER, PUT, Operations
from compactlib.lab.trace import Request, pieces_of
from compactlib.raftlog import Entry


class HasEntries(Protocol):
    """What a `LogTrace` reads: a `LogReader`, a `SegmentLog` or a `RaftLog`."""

    def entries(self) -> Iterator[Entry]:
        """The entries, by ascending index."""


@attrs.frozen
class LogTrace:
    """Each entry of a Raft log is a put of the key that its command writes; a compaction has removed dead entries.

    Attributes:
        reader: the open log.
        key_of: returns the key that a command writes, or `None` if the command keeps nothing. By default each entry has
            a key of its own.
        per_second: entries in a second.

    Raises:
        InvalidInput: `per_second` is not above 0.
    """

    reader: HasEntries
    key_of: Callable[[bytes], str | None] | None = attrs.field(default=None, repr=False)
    per_second: float = attrs.field(default=1_000.0, kw_only=True, validator=is_above(0))

    name: ClassVar[str] = "raft_log"
    operations: ClassVar[int] = 0

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`; the seed changes nothing."""
        return pieces_of(self._request(number, entry) for number, entry in enumerate(self.reader.entries()))

    def _request(self, number: int, entry: Entry) -> Request:
        own = f"\0{entry.index}"
        key = own if self.key_of is None else self.key_of(entry.payload)
        time_ms = int(number * 1000 / self.per_second)
        if key is None:
            return DELETE, (own,), 0, FOREVER, time_ms
        return PUT, (key,), max(len(entry.payload), 1), FOREVER, time_ms
