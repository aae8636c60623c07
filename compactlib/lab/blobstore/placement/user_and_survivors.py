# SPDX-License-Identifier: Apache-2.0
"""The simplest separation: what survived a compaction is likely to live on, so it does not meet new records."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.policy import flag
from compactlib.lab.blobstore.placement.mixed import OneForEach
from compactlib.lab.blobstore.placement.placement import Placer


@attrs.frozen
class UserAndSurvivors:
    """The user's records go to one segment, survivors to another.

    Attributes:
        keep_open: whether the survivors' segment stays open between compactions; otherwise each compaction closes it
            at its end, part-filled, as in a log without a placement.

    Raises:
        InvalidInput: that is neither `True` nor `False`.
    """

    keep_open: bool = flag(True)

    name: ClassVar[str] = "user_and_survivors"
    classes: ClassVar[int] = 2

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        placer = OneForEach(survivors=1)
        placer.brief = () if self.keep_open else (1,)
        return placer
