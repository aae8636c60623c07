"""How the checks run Hypothesis: the same examples in every call, no time limit, one failure, the smallest."""

from __future__ import annotations

from typing import TypeVar

from compactlib.errors import MissingDependency

try:
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying things on random input") from None

StepT = TypeVar("StepT")


def histories_of(steps: st.SearchStrategy[StepT], max_steps: int) -> st.SearchStrategy[tuple[StepT, ...]]:
    """Short and long histories; a list alone would give short ones only. Shrinks to the fewest steps."""
    short = st.lists(steps, max_size=max_steps)
    return (short | st.lists(steps, min_size=max_steps // 2, max_size=max_steps)).map(tuple)


def as_always(max_examples: int) -> settings:
    """The settings of every check: derandomized, so that a failure is found again; nothing is kept on disk."""
    return settings(max_examples=max_examples, deadline=None, database=None, derandomize=True,
                    report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink),
                    suppress_health_check=list(HealthCheck))
