# SPDX-License-Identifier: Apache-2.0
"""FADaC: a key is classed by how often it is written, against the average of the log."""

from __future__ import annotations

from array import array
from typing import ClassVar

import attrs

from compactlib.blobstore.policy import whole
from placement.placer import Placer, grown


@attrs.frozen(kw_only=True)
class FADaC:
    """Class a key by its count, which rises by one with each write and falls with each copy, against the average.

    The average is taken over a number of requests equal to the number of valid records. Class 0 is at or below the
    average; each further class spans a factor of `step`. K. Kremer, A. Brinkmann, "FADaC: a self-adapting data
    classifier for flash memory", SYSTOR 2019.

    Attributes:
        classes: at least 2.
        step: the factor from one class to the next, above 1.
        request_records: records that a request of the user writes, on average, above 0. The average approaches this
            number.

    Raises:
        InvalidInput, ValueError: a setting is out of its range.
    """

    classes: int = whole(6, least=2)
    step: float = attrs.field(default=10.0, validator=attrs.validators.gt(1))
    request_records: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))

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
            # Each record of a request of r records makes 1 / r of the request's step.
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
