# SPDX-License-Identifier: Apache-2.0
"""`TimePublisher`: replicates a round's lowest time in the logs of the partitions whose primary is on this node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from compactlib.catalog.log.replicated import LowestTime, encode_command
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.round.messages import ZoneResult, short_text
from compactlib.errors import CompactlibError

_LOGGER = logging.getLogger("compactlib.catalog")

Propose: TypeAlias = Callable[[bytes], object]
"""Replicates a command in a partition's log, and returns when it cannot be lost any more."""
PrimaryLookup: TypeAlias = Callable[[int, int], Propose | None]
"""The host's rule: for a zone's id and a partition, how to propose if its primary is here; `None` if it is not."""


class TimePublisher:
    """What a `LocalHost` publishes with: one command a partition; partitions fail apart.

    Args:
        primary: the host's rule.
    """

    def __init__(self, primary: PrimaryLookup) -> None:
        self._primary = primary

    def __call__(self, zone: int, partitions: int, time: Timestamp) -> ZoneResult:
        """Replicate `time` to each partition of the zone whose primary is here. O(partitions) proposals, in order."""
        command = encode_command(LowestTime(time))
        published = skipped = 0
        failures: list[str] = []
        for partition in range(partitions):
            try:
                propose = self._primary(zone, partition)
                if propose is None:
                    skipped += 1
                    continue
                propose(command)
            except Exception as error:  # whatever a host raises is of this partition alone
                if not isinstance(error, CompactlibError):
                    _LOGGER.warning("partition %d of zone %d: the host raised %r; the others are published to",
                                    partition, zone, error, exc_info=error)
                failures.append(f"partition {partition}: {type(error).__name__}: {error}")
            else:
                published += 1
        more = f" (and {len(failures) - 1} more partitions)" if len(failures) > 1 else ""
        return ZoneResult(zone, published, skipped, short_text(failures[0] + more) if failures else "")
