# SPDX-License-Identifier: Apache-2.0
"""MultiLog: one log for each frequency of updates; a record goes down with each copy, and up if it is early."""

from __future__ import annotations

import random
from array import array
from typing import ClassVar

import attrs

from compactlib.blobstore.policy import whole
from placement.placer import Placer, Victim, grown


@attrs.frozen(kw_only=True)
class MultiLog:
    """A copied record moves to the next colder log; one that is rewritten sooner than its log expects moves back.

    A log expects a record after half of the writes that its valid records represent: half their number times the
    valid part that its segments had when they were collected. A write that is earlier by a part p of that moves up with
    the chance p. A new coldest log begins once the coldest fills a segment. R. Stoica, A. Ailamaki, "Improving flash
    write performance by using update frequency", PVLDB 6 (2013).

    Attributes:
        classes: logs, at least 2.
        seed: of the draws.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    classes: int = whole(6, least=2)
    seed: int = whole(0)

    name: ClassVar[str] = "multi_log"

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Logs(self)


class _Logs(Placer):
    def __init__(self, settings: MultiLog) -> None:
        self._draw = random.Random(settings.seed).random
        self._valid = [0] * settings.classes
        self._collected = [0] * settings.classes
        self._kept = [0] * settings.classes
        self._coldest = 0
        self._log = array("b")
        self._last = array("q")

    def know_keys(self, keys: int) -> None:
        grown(keys, self._log)
        grown(keys, self._last)

    def left(self, key: int, row: int, placed: int) -> None:
        self._valid[placed] -= 1

    def taken(self, victim: Victim) -> None:
        placed = victim.placed
        self._valid[placed] -= victim.valid
        self._collected[placed] += victim.records
        self._kept[placed] += victim.valid

    def write(self, key: int, now_ms: int) -> int:
        log = self._log[key]
        if log and self._collected[log]:
            expected = self._valid[log] * self._kept[log] / self._collected[log] / 2
            early = expected - (self.writes - self._last[key])
            if early > 0 and self._draw() < early / expected:
                log -= 1
                self._log[key] = log
        self._last[key] = self.writes
        self._valid[log] += 1
        return log

    def copy(self, key: int, now_ms: int) -> int:
        log = self._log[key]
        if log < self._coldest:
            log += 1
        elif self._coldest + 1 < len(self._valid) and self._valid[log] >= self.segment_records:
            log = self._coldest = self._coldest + 1
        self._log[key] = log
        self._valid[log] += 1
        return log
