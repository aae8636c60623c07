# SPDX-License-Identifier: Apache-2.0
"""A random generator with given first choices."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

ANY, LAST = object(), object()
"""In place of a given choice: a drawn choice; the last option."""


class Drawn(Random):
    """Returns the given choices first, and draws the others.

    Args:
        seed: of the draws.
        first: the first choices.
    """

    def __init__(self, seed: int, first: Sequence[Any]) -> None:
        super().__init__(seed)
        self._first = list(first)

    def choice(self, options: Any) -> Any:
        given = self._first.pop(0) if self._first else ANY
        if given is LAST:
            return options[-1]
        return super().choice(options) if given is ANY else given
