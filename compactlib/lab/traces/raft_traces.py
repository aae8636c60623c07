# SPDX-License-Identifier: Apache-2.0
"""Logs of other Raft systems as workloads of the Raft log: what was appended, entry by entry.

| class | reads | keys |
|---|---|---|
| `RaTrace` | segment files of RabbitMQ Ra, versions 1 and 2 | what `key_of` says; a command is any Erlang term |
| `etcd_trace.EtcdTrace` | the write-ahead log of etcd 3, `*.wal` | those that its puts and deletes name |

Entries have no times: `per_second` of them are taken to come in a second. What a later leader wrote over is left out,
since no machine has seen it. An entry of which nothing stays, such as a change of members, is a delete of a key of its
own: a replay counts `RaftLogSettings.delete_bytes` for it.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias

import attrs

from compactlib.errors import CorruptData, InvalidInput
from compactlib.lab.traces.operations import DELETE, FOREVER, PUT, Operations
from compactlib.lab.traces.traces import path_text, pieces_of
from compactlib.raftlog.model.values import DamagedEntry
from compactlib.raftlog.segment.reader import SegmentReader

Entry: TypeAlias = tuple[int, bytes]
"""Index and content."""
Command: TypeAlias = tuple[int, Sequence[str], int]
"""Kind, keys, and the size of each."""


@attrs.frozen
class LogTrace(ABC):
    """A base: a folder with the files of a log.

    Attributes:
        path: the folder.
        per_second: how many entries come in a second.

    Raises:
        InvalidInput: `per_second` is no such number.
    """

    path: str = attrs.field(converter=path_text)
    per_second: float = attrs.field(default=1_000.0, kw_only=True)

    name: ClassVar[str]
    operations: ClassVar[int] = 0
    _suffix: ClassVar[str]

    def __attrs_post_init__(self) -> None:
        if not 0 < self.per_second < float("inf"):
            raise InvalidInput(f"per_second is {self.per_second}; give how many entries come in a second")

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`; the seed changes nothing. Reads the log twice. Memory: the keys, and one piece.

        Raises:
            CorruptData: there is no such log, or a file of it is damaged.
        """
        paths = [os.path.join(self.path, name) for name in sorted(os.listdir(self.path)) if name.endswith(self._suffix)]
        if not paths:
            raise CorruptData(path=self.path, offset=0, expected=f"files *{self._suffix}", found="no such file")
        commands = enumerate(self._commands(self._kept(paths)))
        yield from pieces_of((kind, keys, size, FOREVER, int(number * 1000 / self.per_second))
                             for number, (kind, keys, size) in commands)

    def _kept(self, paths: Sequence[str]) -> Iterator[Entry]:
        """The entries that nothing later takes the place of."""
        # Where the log goes back, and the least index from there on.
        back: list[tuple[int, int]] = []
        before = -1
        for number, (index, _) in enumerate(self._entries(paths)):
            if index <= before:
                back.append((number, index))
            before = index
        least: float = math.inf
        for place, (number, index) in reversed(list(enumerate(back))):
            least = min(least, index)
            back[place] = number, int(least)
        back.reverse()
        for number, (index, content) in enumerate(self._entries(paths)):
            while back and back[-1][0] <= number:
                back.pop()
            if not back or index < back[-1][1]:
                yield index, content

    @abstractmethod
    def _entries(self, paths: Sequence[str]) -> Iterator[Entry]:
        """Each entry, in the order in which they were written."""

    @abstractmethod
    def _commands(self, entries: Iterable[Entry]) -> Iterator[Command]:
        """What each entry asks."""

    def __str__(self) -> str:
        return f"{self.name}({self.path})"


def nothing_stays(index: int) -> Command:
    """What an entry asks that keeps nothing."""
    return DELETE, (f"\0{index}",), 0


@attrs.frozen
class RaTrace(LogTrace):
    """The segments of a server of RabbitMQ Ra, in a folder of its own.

    Attributes:
        path: the folder, with files `*.segment`.
        key_of: the key that a command writes, of its bytes; `None` of one that keeps nothing. Default each entry has a
            key of its own, and nothing dies. A function of a module, if the trace is to be replayed elsewhere.
        per_second: how many entries come in a second.

    Raises:
        InvalidInput: `per_second` is no such number.
    """

    key_of: Callable[[bytes], str | None] | None = None

    name: ClassVar[str] = "ra"
    _suffix: ClassVar[str] = ".segment"

    def _entries(self, paths: Sequence[str]) -> Iterator[Entry]:
        for path in paths:
            with SegmentReader(path) as segment:
                if segment.format == "native":
                    raise CorruptData(path=path, offset=0, expected="a segment of Ra", found="one of this library")
                for answer in segment.scan():
                    if isinstance(answer, DamagedEntry):
                        raise answer.error
                    yield answer.index, answer.payload

    def _commands(self, entries: Iterable[Entry]) -> Iterator[Command]:
        for index, data in entries:
            key = f"\0{index}" if self.key_of is None else self.key_of(data)
            yield nothing_stays(index) if key is None else (PUT, (key,), max(len(data), 1))
