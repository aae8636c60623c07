# SPDX-License-Identifier: Apache-2.0
"""DAC: a record moves up a region with each write, and down one with each copy."""

from __future__ import annotations

from array import array
from typing import ClassVar

import attrs

from compactlib.blobstore.policy import whole
from placement.placer import Placer, grown


@attrs.frozen(kw_only=True)
class DAC:
    """Dynamic data clustering: a key's region rises by one with each write and falls by one with each copy.

    A key begins in the coldest region, 0. M.-L. Chiang, P. C. H. Lee, R.-C. Chang, "Using data clustering to improve
    cleaning performance for flash memory", Software: Practice and Experience 29 (1999).

    Attributes:
        classes: regions, at least 2.

    Raises:
        InvalidInput: there are fewer regions.
    """

    classes: int = whole(6, least=2)

    name: ClassVar[str] = "dac"

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Regions(self.classes)


class _Regions(Placer):
    def __init__(self, classes: int) -> None:
        self._hottest = classes - 1
        self._region = array("b")

    def know_keys(self, keys: int) -> None:
        grown(keys, self._region, -1)

    def write(self, key: int, now_ms: int) -> int:
        region = self._region[key]
        if region < self._hottest:
            region += 1
            self._region[key] = region
        return region

    def copy(self, key: int, now_ms: int) -> int:
        region = self._region[key]
        if region:
            region -= 1
            self._region[key] = region
        return region
