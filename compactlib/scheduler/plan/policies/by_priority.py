# SPDX-License-Identifier: Apache-2.0
"""The usual order of assignment: small levels first, then the fewest failures, then by age."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import attrs

from compactlib.scheduler.model.update import Turn
from compactlib.scheduler.plan.policy import (
    AssignmentView,
    JobChoice,
    LevelView,
    WaitingJob,
    check_share,
    choose_by_level,
)

BY_AGE = "by level, failures and age"
"""The rule, as a choice says it."""


@attrs.frozen
class ByPriority:
    """An `AssignmentPolicy`: by level, then jobs that were never assigned, then by failures, then by age.

    Looks at no more jobs than it chooses, whatever the length of the queue.

    Attributes:
        higher_level_share: the share of assignments that goes past a level to the ones above, if they have any, 0 .. 1.

    Raises:
        InvalidInput: the share is none.
    """

    higher_level_share: float = 0.0

    def __attrs_post_init__(self) -> None:
        check_share(self.higher_level_share)

    @property
    def name(self) -> str:
        """`"by_priority"`."""
        return "by_priority"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        """See `AssignmentPolicy.choose`."""
        return choose_by_level(view, _by_age, BY_AGE, self.higher_level_share)


def _by_age(level: LevelView) -> Iterator[tuple[WaitingJob, Turn | None]]:
    return ((job, None) for job in chain(level.ready, level.again))
