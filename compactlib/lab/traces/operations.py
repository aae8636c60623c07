# SPDX-License-Identifier: Apache-2.0
"""What a workload asks of a store, in columns: many operations at once, and no payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

    def rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Kind, key, size, life and time of each operation."""
        count = len(self.kinds)
        sizes = (self.sizes,) * count if isinstance(self.sizes, int) else self.sizes
        lives = (self.lives_ms,) * count if isinstance(self.lives_ms, int) else self.lives_ms
        return zip(self.kinds, self.keys, sizes, lives, self.times_ms, strict=True)

    def owners(self) -> Sequence[int]:
        """The container of each operation."""
        return (self.containers,) * len(self.kinds) if isinstance(self.containers, int) else self.containers
