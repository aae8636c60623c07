# SPDX-License-Identifier: Apache-2.0
"""What a workload asks of a store, in columns: many operations at once, and no payload."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise

import attrs

from compactlib.errors import InvalidInput

PUT = 0
"""Write a key; replaces it if it is there."""
DELETE = 1
"""Remove a key; nothing if it is not there."""
READ = 2
"""Ask for a key; changes nothing."""
KIND_NAMES = ("put", "delete", "read")
FOREVER = -1
"""The life of what stays until it is deleted."""
MAX_KEYS = (1 << 31) - 1
"""Keys lie below this."""
MAX_RECORD_BYTES = (1 << 32) - 1
"""The largest record that a replay can count."""


@attrs.frozen(eq=False, kw_only=True)
class Operations:
    """A piece of a workload, in order of time.

    Attributes:
        kinds: `PUT`, `DELETE` or `READ` of each operation. A PUT of a key that is there replaces it.
        keys: small integers from 0 on; what they stand for does not matter.
        sizes: bytes of content of each PUT or READ; one number if all are alike.
        lives_ms: time to live of each PUT in milliseconds, `FOREVER` for none; one number if all are alike.
        times_ms: when each is made, milliseconds since the epoch, ascending.
        containers: of which container each PUT is; one number if all are alike.

    Raises:
        InvalidInput: the columns differ in length.
    """

    kinds: bytes
    keys: Sequence[int]
    sizes: Sequence[int] | int
    lives_ms: Sequence[int] | int = FOREVER
    times_ms: Sequence[int]
    containers: Sequence[int] | int = 0

    def __attrs_post_init__(self) -> None:
        columns = [self.keys, self.times_ms, *(each for each in (self.sizes, self.lives_ms, self.containers)
                                               if not isinstance(each, int))]
        if any(len(column) != len(self.kinds) for column in columns):
            raise InvalidInput(f"{len(self.kinds)} kinds, {len(self.keys)} keys, {len(self.times_ms)} times: the "
                               f"columns of a piece of a workload are equally long")

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def are_plain_puts(self) -> bool:
        """Whether all are PUTs of one size that live until they are replaced: what can be replayed fastest."""
        return (isinstance(self.sizes, int) and self.lives_ms == FOREVER
                and self.kinds.count(PUT) == len(self.kinds))

    def rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Kind, key, size, life and time of each operation."""
        count = len(self.kinds)
        sizes = (self.sizes,) * count if isinstance(self.sizes, int) else self.sizes
        lives = (self.lives_ms,) * count if isinstance(self.lives_ms, int) else self.lives_ms
        return zip(self.kinds, self.keys, sizes, lives, self.times_ms, strict=True)

    def owners(self) -> Sequence[int]:
        """The container of each operation."""
        return (self.containers,) * len(self.kinds) if isinstance(self.containers, int) else self.containers


class OperationsBuilder:
    """Collects operations one by one, and spreads those that share a time over their tick; for readers of traces.

    Traces note times in seconds, or coarser, and a second may hold tens of thousands of operations. Were they all made
    at once, nothing that one of them replaces would be dead before the last. So requests are spread evenly from their
    time on, over one tick at most, and never past the next time. Memory: a piece, and what shares one time.

    Args:
        keys: what stands for which small integer; shared by all pieces of one trace.
        tick_ms: how coarse times are, milliseconds; 0: they are left as they are.
    """

    def __init__(self, keys: dict[str, int] | None = None, *, tick_ms: int = 0) -> None:
        self._keys: dict[str, int] = {} if keys is None else keys
        self._tick_ms = tick_ms
        self._kinds = bytearray()
        self._numbers = array("i")
        self._sizes, self._lives, self._times = array("q"), array("q"), array("q")
        # Where those begin that share the latest time: more of them may follow.
        self._settled = 0
        self._requests = array("q")

    def __len__(self) -> int:
        """How many operations `take` gives."""
        return self._settled

    def add(self, kind: int, key: str, size: int, life_ms: int, time_ms: int, *, joins: bool = False) -> None:
        """One operation more, not before the last; one that `joins` it belongs to the same request."""
        if self._times and time_ms != self._times[-1]:
            self._settle(time_ms)
        if not joins or not self._requests:
            self._requests.append(len(self._times))
        self._kinds.append(kind)
        self._numbers.append(self._keys.setdefault(key, len(self._keys)))
        self._sizes.append(size)
        self._lives.append(life_ms)
        self._times.append(time_ms)

    def rest(self) -> Iterator[Operations]:
        """What is left, when no more follow."""
        if self._times:
            self._settle(self._times[-1] + self._tick_ms)
            yield self.take()

    def _settle(self, next_ms: int) -> None:
        time_ms, end, count = self._times[-1], len(self._times), len(self._requests)
        span = min(self._tick_ms, next_ms - time_ms)
        for number, (first, behind) in enumerate(pairwise((*self._requests, end))):
            self._times[first:behind] = array("q", (time_ms + number * span // count,)) * (behind - first)
        self._settled = end
        del self._requests[:]

    def take(self) -> Operations:
        """What was collected, but for those that share the latest time; begins anew."""
        end = self._settled
        made = Operations(kinds=bytes(self._kinds[:end]), keys=self._numbers[:end], sizes=self._sizes[:end],
                          lives_ms=self._lives[:end], times_ms=self._times[:end])
        del self._kinds[:end], self._numbers[:end], self._sizes[:end], self._lives[:end], self._times[:end]
        self._settled = 0
        return made
