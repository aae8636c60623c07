# SPDX-License-Identifier: Apache-2.0
"""Workloads: what is written when, drawn from a seed. Equal settings and seeds give equal operations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator
from itertools import accumulate
from random import Random
from typing import ClassVar, Protocol

import attrs

from compactlib.errors import InvalidInput
from compactlib.lab.operations import DELETE, FOREVER, MAX_KEYS, MAX_RECORD_BYTES, PUT, READ, Operations

PIECE = 8_192
"""Operations in a piece of a workload."""
_MOST_BYTES = MAX_RECORD_BYTES // 2
_LONGEST_SECONDS = (1 << 53) / 1000


class Workload(Protocol):
    """What is asked of a store; picklable, so that it can be replayed elsewhere."""

    @property
    def name(self) -> str:
        """A short name for reports."""

    @property
    def operations(self) -> int:
        """How many operations there will be, for progress; 0 if that is not known before they are read."""

    def pieces(self, seed: int) -> Iterator[Operations]:
        """The operations in order of time, a few thousand at once; the same for the same seed."""


@attrs.frozen(kw_only=True)
class Synthetic(ABC):
    """A base: every key is written once, then `writes` of them are written again, each at its time.

    Attributes:
        keys: how many keys there are, 1 to 2**31 - 1.
        writes: operations after the first write of each.
        record_bytes: content of a record, 1 to 2**31 - 1.
        spread: by which part of `record_bytes` records are at most larger or smaller, 0 (all alike) to 1.
        per_second: operations in a second, at most 1000 for times that all differ.
        start: when the first is made, seconds since the epoch.

    Raises:
        InvalidInput: a number is out of its range.
    """

    keys: int
    writes: int
    record_bytes: int = 1
    spread: float = 0.0
    per_second: float = 1_000.0
    start: float = 0.0

    name: ClassVar[str]

    def __attrs_post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        if not (1 <= self.keys <= MAX_KEYS and self.writes >= 0 and 1 <= self.record_bytes <= _MOST_BYTES):
            raise InvalidInput(f"{self.keys} keys, {self.writes} writes of {self.record_bytes} bytes: give at least 1 "
                               f"key, no negative number and records of 1 to {_MOST_BYTES} bytes")
        if not (0 <= self.spread <= 1 and self.per_second > 0
                and abs(self.start) + (self.keys + self.writes) / self.per_second <= _LONGEST_SECONDS):
            raise InvalidInput(f"spread is {self.spread}, per_second {self.per_second} and start {self.start}; a "
                               f"spread lies between 0 and 1, a rate above 0, and a start is a time, within "
                               f"{_LONGEST_SECONDS:g} seconds of which all is done")

    @property
    def operations(self) -> int:
        """See `Workload.operations`."""
        return self.keys + self.writes

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`."""
        random = Random(seed)
        for start in range(0, self.keys, PIECE):
            numbers = array("i", range(start, min(start + PIECE, self.keys)))
            yield self._put(numbers, start, random)
        yield from self.later(random)

    def later(self, random: Random) -> Iterator[Operations]:
        """What follows the first write of each key."""
        draw = self.sampler(random)
        for start in range(0, self.writes, PIECE):
            yield self._put(draw(min(PIECE, self.writes - start)), self.keys + start, random)

    @abstractmethod
    def sampler(self, random: Random) -> _Draw:
        """What draws so many keys at once."""

    def _put(self, numbers: array[int], place: int, random: Random) -> Operations:
        return Operations(kinds=bytes(len(numbers)), keys=numbers, sizes=self._sizes(len(numbers), random),
                          lives_ms=self.lives(len(numbers), random), times_ms=self._times(place, len(numbers)))

    def lives(self, count: int, random: Random) -> array[int] | int:
        """Times to live of so many records, milliseconds."""
        return FOREVER

    def _sizes(self, count: int, random: Random) -> array[int] | int:
        if not self.spread:
            return self.record_bytes
        low, high = self.record_bytes * (1 - self.spread), self.record_bytes * (1 + self.spread)
        return array("q", [max(round(random.uniform(low, high)), 1) for _ in range(count)])

    def _times(self, place: int, count: int) -> array[int] | range:
        first = round(self.start * 1000)
        if self.per_second == 1_000:
            return range(first + place, first + place + count)
        step = 1_000 / self.per_second
        return array("q", [first + int(number * step) for number in range(place, place + count)])

    def __str__(self) -> str:
        changed = [f"{field.name}={getattr(self, field.name)}" for field in attrs.fields(type(self))
                   if getattr(self, field.name) != field.default]
        return f"{self.name}({', '.join(changed)})"


class _Draw(Protocol):
    def __call__(self, count: int, /) -> array[int]: ...


def _below(keys: int, random: Random) -> _Draw:
    """Draws uniformly from `keys` numbers: 32 random bits each, scaled; off by less than keys / 2**32."""
    def draw(count: int) -> array[int]:
        bits = array("I", random.randbytes(4 * count))
        return array("i", [each * keys >> 32 for each in bits])

    return draw


@attrs.frozen(kw_only=True)
class Uniform(Synthetic):
    """Every key is as likely as any other. See `Synthetic` for the settings."""

    name: ClassVar[str] = "uniform"

    def sampler(self, random: Random) -> _Draw:
        """See `Synthetic.sampler`."""
        return _below(self.keys, random)


@attrs.frozen(kw_only=True)
class HotCold(Synthetic):
    """A few keys get most of the writes: a part `hot_keys` of them gets the part `hot_writes`.

    Attributes:
        hot_keys: which part of the keys is hot, above 0 and below 1.
        hot_writes: which part of the writes goes there, 0 to 1.

    Raises:
        InvalidInput: a part is out of its range.
    """

    hot_keys: float = 0.1
    hot_writes: float = 0.9

    name: ClassVar[str] = "hot_cold"

    def _check(self) -> None:
        super()._check()
        if not 0 < self.hot_keys < 1 or not 0 <= self.hot_writes <= 1 or not 1 <= self._hot < self.keys:
            raise InvalidInput(f"{self.hot_keys} of {self.keys} keys hot with {self.hot_writes} of the writes; both "
                               f"kinds need a key, and writes are a part of the whole")

    @property
    def _hot(self) -> int:
        return int(self.keys * self.hot_keys)

    def sampler(self, random: Random) -> _Draw:
        """See `Synthetic.sampler`."""
        hot, share = self._hot, self.hot_writes
        cold = self.keys - hot
        chance = random.random

        def draw(count: int) -> array[int]:
            return array("i", [int(chance() * hot) if chance() < share else hot + int(chance() * cold)
                               for _ in range(count)])

        return draw


@attrs.frozen(kw_only=True)
class Zipf(Synthetic):
    """The k-th most popular key is written in proportion to 1 / k**exponent; which key that is, is drawn.

    Attributes:
        exponent: above 0; web objects are near 1.

    Raises:
        InvalidInput: it is not above 0.
    """

    exponent: float = 1.0

    name: ClassVar[str] = "zipf"

    def _check(self) -> None:
        super()._check()
        if not self.exponent > 0:
            raise InvalidInput(f"exponent is {self.exponent}; give a number above 0, or take Uniform")

    def sampler(self, random: Random) -> _Draw:
        """See `Synthetic.sampler`. O(log keys) a draw, 12 bytes a key."""
        weights = array("d", accumulate(rank ** -self.exponent for rank in range(1, self.keys + 1)))
        ranked = array("i", range(self.keys))
        random.shuffle(ranked)

        def draw(count: int) -> array[int]:
            return array("i", random.choices(ranked, cum_weights=weights, k=count))

        return draw


@attrs.frozen(kw_only=True)
class TtlMix(Uniform):
    """Records have times to live: each one's is drawn from `lives_seconds`; writes are uniform.

    Attributes:
        lives_seconds: pairs of a share (they add up to at most 1) and a time to live; the rest lives until replaced.

    Raises:
        InvalidInput: shares add up to more than 1, one is negative, or a time is not above 0.
    """

    lives_seconds: tuple[tuple[float, float], ...] = ((0.1, 600.0), (0.3, 3_600.0))

    name: ClassVar[str] = "ttl_mix"

    def _check(self) -> None:
        super()._check()
        if sum(share for share, _ in self.lives_seconds) > 1 or not all(
                share >= 0 and 0 < life <= _LONGEST_SECONDS for share, life in self.lives_seconds):
            raise InvalidInput(f"lives_seconds is {self.lives_seconds}; give shares of at least 0 that add up to "
                               f"at most 1, each with a time above 0")

    def lives(self, count: int, random: Random) -> array[int]:
        """See `Synthetic.lives`."""
        shares = [share for share, _ in self.lives_seconds]
        lives = [round(life * 1000) for _, life in self.lives_seconds]
        return array("q", random.choices([*lives, FOREVER], weights=[*shares, max(1 - sum(shares), 0.0)], k=count))


@attrs.frozen(kw_only=True)
class Expiring(Zipf):
    """Containers of neighbouring keys, a part of them with times to live; which keys are written, Zipf's law says.

    As hosts do, a container has a time to live or it has none: all its records get its own, drawn once between the
    shortest and the longest (evenly in their logarithms), give or take half. For a control, `by_container=False` draws
    anew for each record whether it has one and how long that is, whatever its container, key, size and popularity.

    Attributes:
        share: which part of the records has a time to live, 0 to 1.
        containers: how many there are, 1 to `keys`.
        shortest_seconds: see above, above 0.
        longest_seconds: at least the shortest.
        by_container: see above.

    Raises:
        InvalidInput: a number is out of its range.
    """

    exponent: float = 0.8
    share: float = 0.2
    containers: int = 20
    shortest_seconds: float = 1.0
    longest_seconds: float = 30.0
    by_container: bool = True

    name: ClassVar[str] = "expiring"

    def _check(self) -> None:
        super()._check()
        if not 0 <= self.share <= 1 or not 1 <= self.containers <= self.keys:
            raise InvalidInput(f"share is {self.share} with {self.containers} containers; a part lies between 0 and 1, "
                               f"and there are at most {self.keys} containers")
        if not 0 < self.shortest_seconds <= self.longest_seconds <= _LONGEST_SECONDS:
            raise InvalidInput(f"times to live from {self.shortest_seconds} to {self.longest_seconds} seconds; give "
                               f"times above 0, the shortest first")

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`."""
        random = Random(f"{seed} lives")
        expire = round(self.share * self.containers)
        own = [self._drawn(random) if number < expire else None for number in range(self.containers)]
        random.shuffle(own)
        for piece in super().pieces(seed):
            owners = array("i", [key * self.containers // self.keys for key in piece.keys])
            if self.by_container:
                given = [own[owner] for owner in owners]
                lives = [FOREVER if life is None else round(life * (500 + 1_000 * random.random())) for life in given]
            else:
                lives = [round(1_000 * self._drawn(random)) if random.random() < self.share else FOREVER
                         for _ in owners]
            yield attrs.evolve(piece, containers=owners, lives_ms=array("q", lives))

    def _drawn(self, random: Random) -> float:
        return self.shortest_seconds * math.pow(self.longest_seconds / self.shortest_seconds, random.random())


@attrs.frozen(kw_only=True)
class Bursts(Uniform):
    """Uniform writes, and now and then a whole range of neighbouring keys is deleted at once, as a container is.

    Attributes:
        every: operations from one burst to the next, at least 1.
        burst_keys: keys that a burst deletes, 1 to `keys`.

    Raises:
        InvalidInput: a number is out of its range.
    """

    every: int = 50_000
    burst_keys: int = 5_000

    name: ClassVar[str] = "bursts"

    def _check(self) -> None:
        super()._check()
        if not self.every >= 1 or not 1 <= self.burst_keys <= self.keys:
            raise InvalidInput(f"bursts of {self.burst_keys} keys every {self.every} operations; give at least 1 of "
                               f"each, and at most {self.keys} keys")

    @property
    def operations(self) -> int:
        """See `Workload.operations`."""
        return self.keys + self.writes + self.writes // self.every * self.burst_keys

    def later(self, random: Random) -> Iterator[Operations]:
        """See `Synthetic.later`."""
        draw = self.sampler(random)
        place, left = self.keys, self.writes
        until_burst = self.every
        while left:
            count = min(PIECE, left, until_burst)
            yield self._put(draw(count), place, random)
            place, left, until_burst = place + count, left - count, until_burst - count
            if not until_burst:
                first = random.randrange(self.keys)
                gone = array("i", [(first + number) % self.keys for number in range(self.burst_keys)])
                for start in range(0, self.burst_keys, PIECE):
                    part = gone[start:start + PIECE]
                    yield Operations(kinds=bytes([DELETE]) * len(part), keys=part, sizes=0,
                                     times_ms=self._times(place, len(part)))
                    place += len(part)
                until_burst = self.every


@attrs.frozen(kw_only=True)
class AppendMostly(Synthetic):
    """New keys come all the time, and a few of those that are there are deleted, whatever their age.

    `keys` are written in the beginning; each later operation brings a new key, or deletes one that was ever
    written with the part `deletes`. So the log grows: give it room.

    Attributes:
        deletes: which part of the operations deletes, 0 to 1.

    Raises:
        InvalidInput: the part is out of its range.
    """

    deletes: float = 0.05

    name: ClassVar[str] = "append_mostly"

    def _check(self) -> None:
        super()._check()
        if not 0 <= self.deletes <= 1 or self.keys + self.writes > MAX_KEYS:
            raise InvalidInput(f"deletes is {self.deletes} with {self.keys + self.writes} operations; a part lies "
                               f"between 0 and 1, and there are at most {MAX_KEYS} keys")

    def sampler(self, random: Random) -> _Draw:
        """See `Synthetic.sampler`."""
        return _below(self.keys, random)

    def later(self, random: Random) -> Iterator[Operations]:
        """See `Synthetic.later`."""
        known = self.keys
        for start in range(0, self.writes, PIECE):
            count = min(PIECE, self.writes - start)
            kinds, numbers = bytearray(), array("i")
            for _ in range(count):
                if random.random() < self.deletes:
                    kinds.append(DELETE)
                    numbers.append(int(random.random() * known))
                else:
                    kinds.append(PUT)
                    numbers.append(known)
                    known += 1
            yield Operations(kinds=bytes(kinds), keys=numbers, sizes=self._sizes(count, random),
                             times_ms=self._times(self.keys + start, count))


@attrs.frozen(kw_only=True)
class WithReads:
    """A workload with reads in between, of keys that were written at some time, each as likely as any other.

    Attributes:
        of: the workload.
        reads: which part of all operations reads, at least 0 and below 1.

    Raises:
        InvalidInput: the part is out of its range.
    """

    of: Workload
    reads: float = 0.1

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.reads < 1:
            raise InvalidInput(f"reads is {self.reads}; a part of the operations reads, 0 to less than 1")

    @property
    def name(self) -> str:
        """See `Workload.name`: that of the workload within."""
        return self.of.name

    @property
    def operations(self) -> int:
        """See `Workload.operations`: about so many."""
        return round(self.of.operations / (1 - self.reads))

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`."""
        random = Random(f"{seed} reads")
        keys, due, share = 0, 0.0, self.reads / (1 - self.reads)
        for piece in self.of.pieces(seed):
            if not len(piece):
                continue
            rows: list[tuple[int, int, int, int, int]] = []
            owners = array("i")
            for row, owner in zip(piece.rows(), piece.owners(), strict=True):
                rows.append(row)
                owners.append(owner)
                keys = max(keys, row[1] + 1)
                due += share
                while due >= 1:
                    due -= 1
                    rows.append((READ, int(random.random() * keys), 1, FOREVER, row[4]))
                    owners.append(0)
            kinds, numbers, sizes, lives, times = zip(*rows, strict=True)
            yield Operations(kinds=bytes(kinds), keys=array("i", numbers), sizes=array("q", sizes),
                             lives_ms=array("q", lives), times_ms=array("q", times), containers=owners)

    def __str__(self) -> str:
        return f"{self.of} with {self.reads:.0%} reads"
