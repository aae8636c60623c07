# SPDX-License-Identifier: Apache-2.0
"""Fresh random examples: every check draws the same ones in each call, unless it runs inside `fresh_examples`.

>>> first = drawing(1).random()
>>> first == drawing(1).random()
True
>>> with fresh_examples(7):
...     first == drawing(1).random()
False
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from contextvars import ContextVar

_FRESH: ContextVar[int | None] = ContextVar("compactlib_testing_fresh", default=None)


@contextlib.contextmanager
def fresh_examples(number: int) -> Iterator[None]:
    """Inside the `with`, the checks that this thread calls draw other examples than always.

    Args:
        number: any seed; the same one gives the same examples, so that a failure is found again.
    """
    token = _FRESH.set(number)
    try:
        yield
    finally:
        _FRESH.reset(token)


def fresh_number() -> int | None:
    """The number of the `fresh_examples` that the caller is inside of, or `None`."""
    return _FRESH.get()


def drawing(number: int) -> random.Random:
    """A generator for a check that draws by itself: the same in every call, unless inside `fresh_examples`.

    Args:
        number: distinguishes the generators of one check.
    """
    fresh = _FRESH.get()
    return random.Random(number if fresh is None else f"{fresh} {number}")
