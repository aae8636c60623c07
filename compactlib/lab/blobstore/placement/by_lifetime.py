# SPDX-License-Identifier: Apache-2.0
"""ByLifetime: what ends at a known time lies with what ends then; the rest with what is rewritten as often."""

from __future__ import annotations

import math
from array import array
from typing import ClassVar

import attrs

from compactlib._arguments import is_above
from compactlib.lab.blobstore.placement.placement import Placer, class_count, grown

_REMEMBERED = 16
_PRIOR = 0.5


@attrs.frozen(kw_only=True)
class ByLifetime:
    """A record goes by its time to live where that ends first, else by how long its key's records live on average.

    A block device sees writes alone; a blob store is told when a record ends. Of a key the writes are counted, and
    since when; of both half is forgotten every 16 writes. From these, and from half a write in a turn of the log (the
    time in which as much is written as is valid), follows how long its records live. A record whose time to live ends
    before the part `sooner` of that goes to a class of ends, the others to a class of lives. A class spans a factor of
    two; the first ends at an eighth of a turn. It keeps two numbers a key, 16 bytes.

    Attributes:
        rates: classes of records that writes replace, at least 2.
        ends: classes of records that expire, at least 1.
        sooner: which part of a key's mean life a time to live has to be shorter than, above 0.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    rates: int = class_count(6, least=2)
    ends: int = class_count(4, least=1)
    sooner: float = attrs.field(default=0.7, validator=is_above(0))

    name: ClassVar[str] = "by_lifetime"

    @property
    def classes(self) -> int:
        """How many segments are open at once."""
        return self.rates + self.ends

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Lifetimes(self)


class _Lifetimes(Placer):
    def __init__(self, settings: ByLifetime) -> None:
        self._settings = settings
        self._writes = array("d")
        self._since = array("d")
        self._written_ms = 0
        self._gap_ms = 0.0

    def know_keys(self, keys: int) -> None:
        grown(keys, self._writes)
        grown(keys, self._since)

    def write(self, key: int, now_ms: int) -> int:
        if self.writes > 1:
            gap_ms = now_ms - self._written_ms
            self._gap_ms += (gap_ms - self._gap_ms) / min(max(self.valid_records(), 1), self.writes - 1)
        self._written_ms = now_ms
        writes = self._writes[key] + 1
        if writes == 1:
            self._since[key] = now_ms
        elif writes > _REMEMBERED:
            writes /= 2
            self._since[key] = (self._since[key] + now_ms) / 2
        self._writes[key] = writes
        return self.copy(key, now_ms)

    def copy(self, key: int, now_ms: int) -> int:
        turn_ms = self.valid_records() * self._gap_ms
        life_ms = (now_ms - self._since[key] + _PRIOR * turn_ms) / (self._writes[key] - 1 + _PRIOR)
        left_ms, settings = self.until_ms - now_ms, self._settings
        if left_ms < settings.sooner * life_ms:
            return settings.rates + _step(left_ms, turn_ms, settings.ends)
        return _step(life_ms, turn_ms, settings.rates)


def _step(span_ms: float, turn_ms: float, steps: int) -> int:
    """0 below an eighth of a turn, then one more for each factor of two."""
    parts = 8 * span_ms / turn_ms if turn_ms else 0.0
    return 0 if parts < 1 else min(int(math.log2(parts)) + 1, steps - 1)
