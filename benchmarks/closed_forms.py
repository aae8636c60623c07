# SPDX-License-Identifier: Apache-2.0
"""Closed forms for the cleaning of a log: write amplification as a function of utilisation, without a simulation.

For records of one size overwritten uniformly at random, in segments of many records, with u the live part of the log
and v the valid part of a segment when it is cleaned:

- a segment that holds v frees 1 - v, so each record written is written `1 / (1 - v)` times in all;
- oldest segment first (FIFO, the circular log): between the writing of a segment and its cleaning the log is written
  through once, of which 1 - v is user writes: (1 - v) / u writes for each live record. A record survives that many
  draws with probability `exp(-(1 - v) / u)`, so v is the fixed point of `v = exp(-(1 - v) / u)`.
  It is the LRU cleaning of Desnoyers (SYSTOR 2012; ACM ToS 2014); solved with Lambert's W it is the formula of Xiang
  and Kurkoski (arXiv 1110.4245, 2012), who give 2.36 where the log is 1.3 times as large as what lives in it.
- emptiest segment first (greedy), segments of n records: a segment with i valid records loses one with a chance in
  proportion to i. In the steady state as many segments go from i to i - 1 as are cleaned, so there are in proportion
  to 1/i of each i above that of the victims; together they are the whole log. With v*n valid records in a victim,
  `H(n) - H(v*n) = (1 - v) / u`, H the harmonic numbers: the steady state of Robinson (1996, least-utilised segment
  cleaning), Bux and Iliadis (2010) and Desnoyers (2012). As n grows, H becomes the logarithm and the result that of
  oldest first, which it nears from below: under a uniform load, choosing helps only as far as segments differ.
- a segment at random: v is u.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from compactlib.errors import InvalidInput

_STEPS = 200


def fifo_write_amplification(utilisation: float) -> float:
    """Of oldest-first cleaning under uniform overwrites.

    Args:
        utilisation: live bytes as a part of the log, above 0 and below 1.

    Raises:
        InvalidInput: it is not.
    """
    _check(utilisation)
    valid = _root(lambda v: math.exp(-(1 - v) / utilisation) - v, utilisation)
    return 1 / (1 - valid)


def greedy_write_amplification(utilisation: float, records_per_segment: int) -> float:
    """Of emptiest-first cleaning under uniform overwrites.

    Args:
        utilisation: live bytes as a part of the log, above 0 and below 1.
        records_per_segment: how many records a segment holds, at least 2.

    Raises:
        InvalidInput: a number is out of its range.
    """
    _check(utilisation)
    if records_per_segment < 2:
        raise InvalidInput(f"records_per_segment is {records_per_segment}; segments of one record need no cleaning")
    count = records_per_segment
    whole = harmonic(count)
    valid = _root(lambda v: whole - harmonic(v * count) - (1 - v) / utilisation, utilisation)
    return 1 / (1 - valid)


def random_write_amplification(utilisation: float) -> float:
    """Of cleaning segments at random under uniform overwrites.

    Raises:
        InvalidInput: `utilisation` is not above 0 and below 1.
    """
    _check(utilisation)
    return 1 / (1 - utilisation)


def harmonic(number: float) -> float:
    """The harmonic number, between the whole ones too: digamma(number + 1) + Euler's constant."""
    shifted, total = number + 1.0, 0.0
    while shifted < 6:
        total -= 1 / shifted
        shifted += 1
    squared = 1 / (shifted * shifted)
    series = squared * (1 / 12 - squared * (1 / 120 - squared * (1 / 252 - squared / 240)))
    return total + math.log(shifted) - 0.5 / shifted - series + 0.57721566490153286


def _root(falling: Callable[[float], float], utilisation: float) -> float:
    """Where the function turns from above 0 to below it, between 0 and `utilisation`."""
    low, high = 0.0, utilisation
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _check(utilisation: float) -> None:
    if not 0 < utilisation < 1:
        raise InvalidInput(f"utilisation is {utilisation}; it is the live part of the log, above 0 and below 1")
