# SPDX-License-Identifier: Apache-2.0
"""FADaC: counts of writes that fade with each copy, held against an average that fades, too."""

from __future__ import annotations

from array import array
from typing import ClassVar

import attrs

from compactlib._arguments import is_above
from compactlib.lab.blobstore.placement.placement import Placer, class_count, grown


@attrs.frozen(kw_only=True)
class FADaC:
    """A key's count rises by one with each write and falls with each copy; its class is its distance from the average.

    The average fades over as many requests as there are valid records. A class spans a factor of `step`: 0 is at or
    below the average. K. Kremer, A. Brinkmann, "FADaC: a self-adapting data classifier for flash memory", SYSTOR 2019.

    Attributes:
        classes: at least 2.
        step: the factor from one class to the next, above 1.
        request_records: how many records a request of the user writes, on average; above 0. The average counts what a
            request brings, so that it nears this number.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    classes: int = class_count(6, least=2)
    step: float = attrs.field(default=10.0, validator=is_above(1))
    request_records: float = attrs.field(default=1.0, validator=is_above(0))

    name: ClassVar[str] = "fadac"

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Fading(self)


class _Fading(Placer):
    def __init__(self, settings: FADaC) -> None:
        self._step, self._hottest = settings.step, settings.classes - 1
        self._request = settings.request_records
        self._average = 0.0
        self._count = array("q")

    def know_keys(self, keys: int) -> None:
        grown(keys, self._count)

    def write(self, key: int, now_ms: int) -> int:
        count = self._count[key] = self._count[key] + 1
        if valid := self.valid_records():
            # Of a request of r records each brings 1 / r of the request's step.
            request = self._request
            self._average += (request - self._average) / valid / request
        return self._class_of(count)

    def copy(self, key: int, now_ms: int) -> int:
        count = self._count[key]
        if count:
            count -= 1
            self._count[key] = count
        return self._class_of(count)

    def _class_of(self, count: int) -> int:
        bound, found = self._average, 0
        while bound and found < self._hottest and count > bound:
            found, bound = found + 1, bound * self._step
        return found
