# SPDX-License-Identifier: Apache-2.0
"""Interrupts at places that are spread over one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compactlib.testing import Interrupted


def interruptions(act: Callable[[], object], count: int, files: tuple[str, ...] = ()) -> Iterator[Interrupted]:
    """Yield interrupts, evenly spread over the places of `act`, each for another call of it.

    Args:
        act: the work to be interrupted; called here once without an interrupt.
        count: the number of interrupts; all places if there are fewer.
        files: see `Interrupted`.
    """
    with Interrupted(files=files) as whole:
        act()
    for number in range(min(count, whole.places)):
        yield Interrupted(1 + (2 * number + 1) * whole.places // (2 * min(count, whole.places)), files=files)
