# SPDX-License-Identifier: Apache-2.0
"""Which neighbouring parts share a partition: a Spark task costs about as much as reading 10 MiB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

DEFAULT_PARTITION_BYTES: Final = 128 << 20
"""Up to which size neighbours share a partition; what `spark.sql.files.maxPartitionBytes` is by default."""


class Part(Protocol):
    """Something to read."""

    @property
    def size_bytes(self) -> int:
        """How much there is to read, about."""


P = TypeVar("P", bound=Part)


def neighbours(parts: Sequence[P], most_bytes: int) -> list[tuple[P, ...]]:
    """The parts in order, neighbours together as long as they have no more than `most_bytes`; larger ones alone."""
    groups: list[list[P]] = []
    size = 0
    for part in parts:
        size += part.size_bytes
        if not groups or size > most_bytes:
            groups.append([])
            size = part.size_bytes
        groups[-1].append(part)
    return list(map(tuple, groups))
