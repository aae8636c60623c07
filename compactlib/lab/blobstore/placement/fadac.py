# SPDX-License-Identifier: Apache-2.0
"""FADaC: counts of writes that fade with each copy, held against an average that fades, too."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from compactlib._arguments import is_above
from compactlib.lab.blobstore.placement.placement import Placer, class_count, grown

if TYPE_CHECKING:
    from compactlib.lab.blobstore.ahead import Classes, Writes


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
        counts, bound, contents = self._count, self._average, self.contents
        # As `valid_records`, without a call.
        valid = (contents.bytes - contents.dead_bytes) / contents.record_bytes
        counts[key] = count = counts[key] + 1
        if valid:
            # Of a request of r records each brings 1 / r of the request's step.
            request = self._request
            bound = self._average = bound + (request - bound) / valid / request
        if not bound or count <= bound:
            return 0
        found, step, hottest = 1, self._step, self._hottest
        while found < hottest and count > (bound := bound * step):
            found += 1
        return found

    def ahead(self, writes: Writes) -> Classes:
        counts = writes.of_keys(self._count) + writes.times_before() + 1
        request, averages = self._request, list[float]()

        def classes_at(valid: Any) -> Any:
            averages.clear()
            average = self._average
            for records in valid.tolist():
                if records:
                    average += (request - average) / records / request
                averages.append(average)
            valid[:] = averages
            return self._classes_of(counts, valid)

        classes: Any = writes.settled(self._classes_of(counts, self._average), classes_at)
        asked = writes.asked(classes)
        writes.leave(self._count, counts, asked)
        self._average = averages[asked - 1]
        return classes  # type: ignore[no-any-return]

    def _classes_of(self, counts: Any, bounds: Any) -> Any:
        """By arrays; see `write`."""
        found = 0
        for _ in range(self._hottest):
            found = found + (counts > bounds)
            bounds = bounds * self._step
        return found * (bounds != 0)

    def copy(self, key: int, now_ms: int) -> int:
        return self.copies((key,), now_ms)[0]

    def copies(self, keys: Sequence[int], now_ms: int) -> list[int]:
        counts, bounds, found = self._count, [self._average], list[int]()
        while self._average and len(bounds) < self._hottest:
            bounds.append(bounds[-1] * self._step)
        for key in keys:
            count = counts[key]
            if count:
                count -= 1
                counts[key] = count
            found.append(bisect_left(bounds, count) if self._average else 0)
        return found
