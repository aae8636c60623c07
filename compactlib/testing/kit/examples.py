# SPDX-License-Identifier: Apache-2.0
"""How the checks run Hypothesis: the same examples in every call, no time limit, one failure, the smallest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from compactlib.errors import MissingDependency
from compactlib.testing.kit.fresh import fresh_number

try:
    from hypothesis import HealthCheck, Phase, seed, settings, strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying things on random input") from None

StepT = TypeVar("StepT")
TestT = TypeVar("TestT", bound=Callable[..., Any])


def histories_of(steps: st.SearchStrategy[StepT], max_steps: int) -> st.SearchStrategy[tuple[StepT, ...]]:
    """Short and long histories; a list alone would give short ones only. Shrinks to the fewest steps."""
    short = st.lists(steps, max_size=max_steps)
    return (short | st.lists(steps, min_size=max_steps // 2, max_size=max_steps)).map(tuple)


def as_always(max_examples: int) -> Callable[[TestT], TestT]:
    """The settings of every check: derandomized, so that a failure is found again; nothing is kept on disk.

    Inside `fresh_examples` the examples are those of its number.
    """
    fresh = fresh_number()
    chosen = settings(max_examples=max_examples, deadline=None, database=None, derandomize=fresh is None,
                      report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink),
                      suppress_health_check=list(HealthCheck))
    if fresh is None:
        return chosen
    drawn = seed(fresh)
    return lambda test: chosen(drawn(test))
