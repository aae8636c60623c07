# SPDX-License-Identifier: Apache-2.0
"""Workloads: operations drawn from a seed. Equal settings and seeds give equal operations.

A host's workload is a frozen class with `name`, `operations` and `rows(seed)`, a generator of operations (`Row`).
A setting out of its range raises `InvalidInput`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate, count, islice, repeat
from random import Random
from typing import Any, ClassVar, Protocol, TypeAlias

import attrs

from compactlib._arguments import is_above, is_fraction, is_seconds, is_whole
from compactlib.errors import InvalidInput

PUT, DELETE, READ = 0, 1, 2
KIND_NAMES = ("put", "delete", "read")
FOREVER = -1
"""The life of a record without a time to live."""
NEVER = (1 << 62) - 1
"""The end of a record without a time to live, milliseconds."""
MAX_KEYS = (1 << 31) - 1
MAX_RECORD_BYTES = (1 << 32) - 1
PIECE = 512
"""The number of operations that are drawn and made at once: few, so that they stay in the processor's cache."""
_MOST_BYTES = MAX_RECORD_BYTES // 2
_LONGEST_SECONDS = (1 << 53) / 1000


Row: TypeAlias = tuple[int, int, int, int, int]
"""An operation: kind, key, size, life and time.

The kind is 0 to put, 1 to delete, 2 to read; a put of an existing key replaces its record. Keys are small numbers from
0 on. The size is bytes of content of a put or a read. The life is a put's time to live in milliseconds, -1 without. The
time is in milliseconds since the epoch, and never descends.
"""


class Workload(Protocol):
    """Operations on a store; a picklable value, so that other processes can replay it."""

    @property
    def name(self) -> str:
        """A short name for reports."""

    @property
    def operations(self) -> int:
        """The number of operations; 0 if unknown before they are read."""

    def rows(self, seed: int) -> Iterator[Row]:
        """Yield the operations in order of time; equal for equal seeds."""


def _whole(default: Any = attrs.NOTHING, *, least: int = 1) -> Any:
    return attrs.field(default=default, validator=is_whole(least))


def _part(default: float) -> Any:
    """A setting from 0 to 1."""
    return attrs.field(default=default, validator=is_fraction)


@attrs.frozen(kw_only=True)
class Synthetic(ABC):
    """The base of drawn workloads: every key is written once, then `writes` drawn keys are written again.

    Operation k is made at k milliseconds.

    Attributes:
        keys: the number of keys, at least 1.
        writes: operations after the first write of each key.
        record_bytes: content of a record, at least 1.
        spread: the largest deviation from `record_bytes`, as a part of it, 0 (equal sizes) to 1.
    """

    keys: int = _whole()
    writes: int = _whole(least=0)
    record_bytes: int = _whole(1)
    spread: float = _part(0.0)

    name: ClassVar[str]

    def __attrs_post_init__(self) -> None:
        if self.keys + self.writes > MAX_KEYS or self.record_bytes > _MOST_BYTES:
            raise InvalidInput(f"{self.keys} keys and {self.writes} writes of {self.record_bytes} bytes; give together "
                               f"at most {MAX_KEYS} of at most {_MOST_BYTES} bytes")

    @property
    def operations(self) -> int:
        """The number of operations."""
        return self.keys + self.writes

    def rows(self, seed: int) -> Iterator[Row]:
        """Yield the operations."""
        random = Random(seed)
        yield from self.puts(iter(range(self.keys)), 0, self.keys, random)
        yield from self.puts(self.drawn(random), self.keys, self.writes, random)

    @abstractmethod
    def drawn(self, random: Random) -> Iterator[int]:
        """Yield drawn keys without end."""

    def puts(self, keys: Iterator[int], first: int, number: int, random: Random) -> Iterator[Row]:
        """Yield a number of puts of the next keys; the first put is operation `first`."""
        low, high = self.record_bytes * (1 - self.spread), self.record_bytes * (1 + self.spread)
        for start in range(first, first + number, PIECE):
            piece = list(islice(keys, min(PIECE, first + number - start)))
            sizes = ([max(round(random.uniform(low, high)), 1) for _ in piece] if self.spread else
                     repeat(self.record_bytes))
            yield from zip(repeat(PUT), piece, sizes, repeat(FOREVER), count(start), strict=False)

    def __str__(self) -> str:
        changed = [f"{field.name}={getattr(self, field.name)}" for field in attrs.fields(type(self))
                   if getattr(self, field.name) != field.default]
        return f"{self.name}({', '.join(changed)})"


@attrs.frozen(kw_only=True)
class Uniform(Synthetic):
    """Each write overwrites a key that is drawn at random; every key is equally likely."""

    name: ClassVar[str] = "uniform"

    def drawn(self, random: Random) -> Iterator[int]:
        while True:
            yield random.getrandbits(32) * self.keys >> 32  # a key's chance is off by less than keys / 2**32


@attrs.frozen(kw_only=True)
class HotCold(Synthetic):
    """A few hot keys get most of the writes.

    Attributes:
        hot_keys: the hot part of the keys; at least one key is hot, and one is cold.
        hot_writes: the part of the writes that hot keys get, 0 to 1.
    """

    hot_keys: float = _part(0.1)
    hot_writes: float = _part(0.9)

    name: ClassVar[str] = "hot_cold"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not 1 <= int(self.keys * self.hot_keys) < self.keys:
            raise InvalidInput(f"hot_keys is {self.hot_keys} of {self.keys} keys; hot and cold keys are at least one "
                               f"each")

    def drawn(self, random: Random) -> Iterator[int]:
        hot = int(self.keys * self.hot_keys)
        while True:
            is_hot = random.random() < self.hot_writes
            yield int(random.random() * hot) if is_hot else hot + int(random.random() * (self.keys - hot))


@attrs.frozen(kw_only=True)
class Zipf(Synthetic):
    """The k-th most popular key is written in proportion to 1 / k**exponent. The order of popularity is drawn.

    O(log keys) a draw, 12 bytes a key.

    Attributes:
        exponent: above 0; web objects are near 1.
    """

    exponent: float = attrs.field(default=1.0, validator=is_above(0))

    name: ClassVar[str] = "zipf"

    def drawn(self, random: Random) -> Iterator[int]:
        weights = array("d", accumulate(rank ** -self.exponent for rank in range(1, self.keys + 1)))
        ranked = array("i", range(self.keys))
        random.shuffle(ranked)
        while True:
            yield ranked[bisect(weights, random.random() * weights[-1], 0, self.keys - 1)]


@attrs.frozen(kw_only=True)
class Expiring(Zipf):
    """Containers of neighbouring keys, some of them with a time to live; writes follow Zipf's law.

    A container's time to live is drawn once between the shortest and the longest (evenly in their logarithms); each of
    its records gets 50 to 150 % of it.

    Attributes:
        share: the part of the containers with a time to live, 0 to 1.
        containers: the number of containers, 1 to `keys`.
        shortest_seconds: above 0.
        longest_seconds: at least the shortest.
    """

    exponent: float = attrs.field(default=0.8, validator=is_above(0))
    share: float = _part(0.2)
    containers: int = _whole(20)
    shortest_seconds: float = attrs.field(default=1.0, validator=is_above(0))
    longest_seconds: float = attrs.field(default=30.0, validator=is_seconds(0, _LONGEST_SECONDS))

    name: ClassVar[str] = "expiring"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.containers > self.keys or self.shortest_seconds > self.longest_seconds:
            raise InvalidInput(f"{self.containers} containers of {self.keys} keys with times to live from "
                               f"{self.shortest_seconds} to {self.longest_seconds} seconds; give at most one container "
                               f"a key, and shortest_seconds of at most longest_seconds")

    def rows(self, seed: int) -> Iterator[Row]:
        random = Random(f"{seed} lives")
        expire = round(self.share * self.containers)
        own = [self._drawn(random) if number < expire else None for number in range(self.containers)]
        random.shuffle(own)
        for kind, key, size, _, time in super().rows(seed):
            given = own[key * self.containers // self.keys]
            life = FOREVER if given is None else round(given * (500 + 1_000 * random.random()))
            yield kind, key, size, life, time

    def _drawn(self, random: Random) -> float:
        return self.shortest_seconds * math.pow(self.longest_seconds / self.shortest_seconds, random.random())


@attrs.frozen(kw_only=True)
class Bursts(Uniform):
    """Uniform writes with bursts of deletes: each deletes a range of neighbouring keys, as of a container.

    Attributes:
        every: operations from one burst to the next, at least 1.
        burst_keys: keys that a burst deletes, 1 to `keys`.
    """

    every: int = _whole(50_000)
    burst_keys: int = _whole(5_000)

    name: ClassVar[str] = "bursts"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.burst_keys > self.keys:
            raise InvalidInput(f"burst_keys is {self.burst_keys}; give at most keys, {self.keys}")

    @property
    def operations(self) -> int:
        return self.keys + self.writes + self.writes // self.every * self.burst_keys

    def rows(self, seed: int) -> Iterator[Row]:
        random, place = Random(seed), self.keys
        yield from self.puts(iter(range(self.keys)), 0, self.keys, random)
        drawn = self.drawn(random)
        for done in range(0, self.writes, self.every):
            number = min(self.every, self.writes - done)
            yield from self.puts(drawn, place, number, random)
            place += number
            if number == self.every:
                first = random.randrange(self.keys)
                for deleted in range(self.burst_keys):
                    yield DELETE, (first + deleted) % self.keys, 0, FOREVER, place + deleted
                place += self.burst_keys


@attrs.frozen(kw_only=True)
class WithReads:
    """A workload with additional reads of keys that were written before, each equally likely.

    Attributes:
        of: the workload.
        reads: the part of all operations that reads, at least 0 and below 1.
    """

    of: Workload
    reads: float = _part(0.1)

    def __attrs_post_init__(self) -> None:
        if self.reads == 1:
            raise InvalidInput("reads is 1; give a part below 1, so that the workload writes")

    @property
    def name(self) -> str:
        """The name of the inner workload."""
        return self.of.name

    @property
    def operations(self) -> int:
        """The approximate number of operations."""
        return round(self.of.operations / (1 - self.reads))

    def rows(self, seed: int) -> Iterator[Row]:
        """Yield the operations of the inner workload, with reads."""
        random = Random(f"{seed} reads")
        keys, due, share = 0, 0.0, self.reads / (1 - self.reads)
        for row in self.of.rows(seed):
            yield row
            keys = max(keys, row[1] + 1)
            due += share
            while due >= 1:
                due -= 1
                yield READ, int(random.random() * keys), 1, FOREVER, row[4]

    def __str__(self) -> str:
        return f"{self.of} with {self.reads:.0%} reads"


@attrs.frozen(kw_only=True)
class Arrivals:
    """Blocks that arrive at random, each with a unique key: a load of a scheduler.

    Attributes:
        blocks: the number of blocks, at least 1.
        per_second: blocks a second, on average.
        burst: blocks that arrive at once; the mean rate stays.
        block_bytes: size of a block, on average; sizes are 50 to 150 % of it.
    """

    blocks: int = _whole(1_000)
    per_second: float = attrs.field(default=2.0, validator=is_above(0))
    burst: int = _whole(1)
    block_bytes: int = _whole(1 << 20)

    name: ClassVar[str] = "arrivals"

    @property
    def operations(self) -> int:
        """The number of blocks."""
        return self.blocks

    def rows(self, seed: int) -> Iterator[Row]:
        """Yield the puts of the blocks."""
        random, at = Random(seed), 0.0
        for number in range(self.blocks):
            if number % self.burst == 0:
                at += random.expovariate(self.per_second / self.burst)
            yield PUT, number, max(round(random.uniform(0.5, 1.5) * self.block_bytes), 1), FOREVER, round(at * 1000)
