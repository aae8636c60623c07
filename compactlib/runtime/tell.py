"""Telling those who watch: what an observer or a listener raises is kept and logged, and breaks nothing.

Callables whose answer is used (a policy, a fence, the change of an update) are not told but asked: what they raise is
the caller's to see. Nobody is told inside a lock or in a replay; that is for the caller to see to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from compactlib.runtime.observe import TellingObserver, telling

__all__ = ["TellingObserver", "tell", "telling"]

_LOGGER = logging.getLogger("compactlib.observers")


def tell(listener: Callable[..., object], *arguments: object) -> Exception | None:
    """Call a listener whose answer nobody uses; returns what it raised, which is logged, or `None`."""
    try:
        listener(*arguments)
    except Exception as error:
        _LOGGER.warning("the listener %r raised %r; the work goes on", listener, error, exc_info=error)
        return error
    return None
