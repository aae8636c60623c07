# SPDX-License-Identifier: Apache-2.0
"""Looking for the outcome of a write that got no answer, until it is seen.

Whatever fails while looking (a read without an answer, damage, a host's own error) leaves the outcome unknown: only a
look that came back may say that nothing was changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from compactlib.clock import Clock, SystemClock

SeenT = TypeVar("SeenT")

MAX_LOOKS = 8
"""How often a caller looks by default: with the pauses below about two seconds."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0


def look_until_seen(look: Callable[[], SeenT], unknown: Exception, *, clock: Clock | None = None,
                    rng: random.Random | None = None, looks: int = MAX_LOOKS) -> SeenT:
    """What `look` has seen, tried again with growing pauses while it raises.

    Args:
        look: reads the store and answers with the outcome of the write; raises if it could not see.
        unknown: what the write raised; raised again, with the last failure as its cause, when no look came back.
        clock: for the pauses, of 20 ms at first, doubling to 1 s.
        rng: varies the pauses between half and the whole, so that many who lost one answer do not look all at once.
        looks: how often to look, >= 1.

    Raises:
        Exception: `unknown`: the outcome was not seen.
    """
    chosen: Clock = SystemClock() if clock is None else clock
    drawn = random.Random() if rng is None else rng
    pause = _FIRST_PAUSE_SECONDS
    for left in reversed(range(looks)):
        try:
            return look()
        except Exception as error:
            if left == 0:
                raise unknown from error
        chosen.sleep(pause * (0.5 + drawn.random() / 2))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    raise unknown
