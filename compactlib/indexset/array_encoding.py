# SPDX-License-Identifier: Apache-2.0
"""The stored form of runs that lie close together, whose numbers but the first take a byte each, by NumPy."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from compactlib.files.varints import decode_varints, encode_varints
from compactlib.indexset.runs import Column, Runs

_MAX_EXACT = 1 << 61
"""Up to here an index, and a gap doubled, is a signed 64-bit integer."""

_MAX_VARINT_BYTES = 10


def small_body(runs: Runs) -> bytes | None:
    """The heads and tails of a canonical family; `None` if one after the first takes more than a byte."""
    if runs[1][-1] > _MAX_EXACT:
        return None
    firsts, lasts = (np.frombuffer(column, np.int64) for column in runs)
    gaps = firsts.copy()
    gaps[1:] -= lasts[:-1] + 2
    spans = lasts - firsts
    has_tail = spans > 0
    numbers = np.concatenate((2 * gaps + has_tail, spans[has_tail] - 1))
    if numbers[1:].max(initial=0) > 0x7F:
        return None
    return encode_varints([int(numbers[0])]) + numbers[1:].astype(np.uint8).tobytes()


def small_runs(body: bytes, runs: int) -> Runs | None:
    """The canonical family of a body that `small_body` could have made; `None` for any other."""
    end = next((place for place, byte in enumerate(body[:_MAX_VARINT_BYTES], 1) if byte < 0x80), 0)
    rest = body[end:]
    if not end or not rest.isascii():
        return None
    try:
        first, = decode_varints(body[:end])
    except ValueError:
        return None
    if first > 2 * _MAX_EXACT:
        return None
    numbers = np.concatenate(([first], np.frombuffer(rest, np.uint8)), dtype=np.int64)
    heads, tails = numbers[:runs], numbers[runs:]
    has_tail = (heads & 1).astype(bool)
    if len(heads) != runs or len(tails) != np.count_nonzero(has_tail):
        return None
    spans = np.zeros(runs, np.int64)
    spans[has_tail] = tails + 1
    steps = (heads >> 1) + spans + 2
    steps[0] -= 2
    lasts = np.cumsum(steps)
    return _column(lasts - spans), _column(lasts)


def _column(values: NDArray[np.int64]) -> Column:
    # Of this very length: an array that grows leaves room behind it.
    made = array("Q", (0,)) * len(values)
    np.frombuffer(made, np.int64)[:] = values
    return made
