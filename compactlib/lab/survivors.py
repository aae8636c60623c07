# SPDX-License-Identifier: Apache-2.0
"""Which survivors of a compaction share a new segment: the contract of a scheme, and two schemes.

What users write goes to the one active segment, since an id is written once. What a compaction copies is placed by
class: a step that fills several segments fills them class by class, the lowest first. Classes that follow one another
may share a segment, so that none is left half empty. A scheme is a function of a `Survivor`, which a store takes as
`BlobStore(place=...)`.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import attrs

from compactlib._arguments import is_above
from compactlib.blobstore.policy import Survivor
from compactlib.errors import InvalidInput

MAX_TIME_MS = (1 << 62) - 1
CLASSES = 1 << 32
"""So many there are, numbered from 0."""


class SurvivorPlacement(Protocol):
    """A scheme and its settings; a frozen attrs class.

    One that reads `Survivor.earlier_ms` declares that by a class attribute `needs_history = True`.
    """

    @property
    def name(self) -> str:
        """A short name for reports."""

    def __call__(self, record: Survivor) -> int:
        """The class of a record, at least 0 and below `CLASSES`. Pure."""


@attrs.frozen(kw_only=True)
class ByAge:
    """Records of like age share a segment: the longer one has lived, the longer it lives on, as SepBIT infers it.

    Attributes:
        step: the factor from one class to the next, above 1.

    Raises:
        InvalidInput: the step is not.
    """

    step: float = attrs.field(default=4.0, validator=is_above(1))

    name: ClassVar[str] = "by_age"

    def __call__(self, record: Survivor) -> int:
        return _step_of(record.now_ms - record.written_ms, self.step)


@attrs.frozen(kw_only=True)
class ByEnd:
    """Records whose end is known share segments by what is left of their lives; the others, apart from these, by how
    long a record of their id lasts.

    A segment of records that end at about one time dies whole, and nothing of it is copied again. Where an id is put
    again and again (`replace=True`), a record lasts as long as the PUTs of it that the log holds have lasted on
    average, from the first of them until now; one that was put once, as long as it is old.

    Attributes:
        step: the factor from one class to the next, above 1.

    Raises:
        InvalidInput: the step is not.
    """

    step: float = attrs.field(default=2.0, validator=is_above(1))

    name: ClassVar[str] = "by_end"
    needs_history: ClassVar[bool] = True

    def __call__(self, record: Survivor) -> int:
        if record.is_known:
            return _step_of(record.until_ms - record.now_ms, self.step)
        first_ms = min(record.earlier_ms, default=record.written_ms)
        lasted_ms = (record.now_ms - first_ms) // (1 + len(record.earlier_ms))
        return _step_of(MAX_TIME_MS, self.step) + 1 + _step_of(lasted_ms, self.step)


def class_of(placement: SurvivorPlacement, record: Survivor) -> int:
    """The class that a scheme gives a record.

    Raises:
        InvalidInput: what it gives is no class.
    """
    found: object = placement(record)
    if not isinstance(found, int) or not 0 <= found < CLASSES:
        raise InvalidInput(f"placement {placement!r:.100} gave class {found!r:.100} to {record}; give a whole "
                           f"number from 0 to {CLASSES - 1}")
    return found


def needs_history(placement: SurvivorPlacement | None) -> bool:
    """Whether a scheme reads `Survivor.earlier_ms`."""
    return bool(getattr(placement, "needs_history", False))


def _step_of(span_ms: int, step: float) -> int:
    # With a step barely above 1 the last class takes the longest spans.
    return min(int(math.log(max(span_ms, 1), step)), CLASSES // 4)
