# SPDX-License-Identifier: Apache-2.0
"""The two simplest placements: survivors with the user's records, and survivors apart."""

from __future__ import annotations

from typing import ClassVar

import attrs

from placement.placer import Placer


@attrs.frozen
class Mixed:
    """Append survivors to the segment of the user's records."""

    name: ClassVar[str] = "mixed"
    classes: ClassVar[int] = 1

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return OneForEach(survivors=0)


class OneForEach(Placer):
    """The user's records go to class 0, survivors to a fixed class."""

    def __init__(self, survivors: int) -> None:
        self._survivors = survivors

    def write(self, key: int, now_ms: int) -> int:
        return 0

    def copy(self, key: int, now_ms: int) -> int:
        return self._survivors


@attrs.frozen
class UserAndSurvivors:
    """Put the user's records into one segment, and survivors into another.

    Attributes:
        keep_open: whether the survivors' segment stays open between compactions; otherwise each compaction closes it,
            part-filled.
    """

    keep_open: bool = True

    name: ClassVar[str] = "user_and_survivors"
    classes: ClassVar[int] = 2

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        placer = OneForEach(survivors=1)
        placer.brief = () if self.keep_open else (1,)
        return placer
