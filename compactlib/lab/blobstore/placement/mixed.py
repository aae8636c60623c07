# SPDX-License-Identifier: Apache-2.0
"""No separation: all records share one open segment."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.lab.blobstore.placement.placement import Placer


@attrs.frozen
class Mixed:
    """Survivors go behind the user's records, into the same segment."""

    name: ClassVar[str] = "mixed"
    classes: ClassVar[int] = 1

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return OneForEach(survivors=0)


class OneForEach(Placer):
    """The user's records go to class 0, survivors to a class that is fixed."""

    def __init__(self, survivors: int) -> None:
        self._survivors = survivors

    def write(self, key: int, now_ms: int) -> int:
        return 0

    def copy(self, key: int, now_ms: int) -> int:
        return self._survivors
