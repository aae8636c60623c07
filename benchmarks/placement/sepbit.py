# SPDX-License-Identifier: Apache-2.0
"""SepBIT: a record's invalidation time is inferred from the age of the record that it replaces, and from its own."""

from __future__ import annotations

import math
from array import array
from typing import ClassVar

import attrs

from compactlib.blobstore.policy import whole
from placement.placer import Placer, Victim, grown


@attrs.frozen(kw_only=True)
class SepBIT:
    """A record that replaces a short-lived one is short-lived, and an old record stays. Lives count in writes.

A write goes to class 0 if the replaced record lived less than l, else to class 1. A record copied from class 0 goes
    to class 2; the rest by its age, below 4 l, 16 l and so on, to the others. l is the mean life of the last
    `segments` segments of class 0, from opening to collection. As the paper's own queue of recent writes does, only the
    last l writes are remembered, and at most as many as there are valid records. Q. Wang, J. Li, P. P. C. Lee,
    T. Ouyang, C. Shi, L. Huang, "Separating data via block invalidation time inference for write amplification
    reduction in log-structured storage", FAST 2022.

    Attributes:
        classes: at least 4.
        segments: how many segments of class 0 the mean life is taken of, at least 1.
        step: the factor from one age to the next, above 1.

    Raises:
        InvalidInput, ValueError: a setting is out of its range.
    """

    classes: int = whole(6, least=4)
    segments: int = whole(16, least=1)
    step: float = attrs.field(default=4.0, validator=attrs.validators.gt(1))

    name: ClassVar[str] = "sepbit"

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Inferred(self)


class _Inferred(Placer):
    def __init__(self, settings: SepBIT) -> None:
        self._settings = settings
        self._short = math.inf
        self._lives = self._collected = 0
        self._from_short = False
        self._remembered = 0
        # A new key counts as last written before the first write.
        self._last = array("q")

    def know_keys(self, keys: int) -> None:
        grown(keys, self._last)

    def write(self, key: int, now_ms: int) -> int:
        writes, remembered, short = self.writes, self._remembered, self._short
        age = writes - self._last[key]
        self._last[key] = writes
        # Two go at most, so that a mean life that falls costs no write much.
        if remembered + 1 > short:
            self._remembered = remembered - 1 if remembered > short else remembered
        elif remembered + 1 <= self.valid_records():
            self._remembered = remembered + 1
        return 0 if age < short and age < remembered else 1

    def taken(self, victim: Victim) -> None:
        self._from_short = victim.placed == 0
        if self._from_short:
            self._lives += self.writes - victim.begun
            self._collected += 1
            if self._collected == self._settings.segments:
                self._short = self._lives / self._collected
                self._lives = self._collected = 0

    def copy(self, key: int, now_ms: int) -> int:
        if self._from_short:
            return 2
        age, bound, found = self.writes - self._last[key], self._short, 3
        for _ in range(self._settings.classes - 4):
            bound *= self._settings.step
            found += age >= bound
        return found
