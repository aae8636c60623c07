# SPDX-License-Identifier: Apache-2.0
"""Small jobs go first, so that a large one does not keep many others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import attrs

from compactlib.errors import InvalidInput
from compactlib.scheduler.model.update import Turn
from compactlib.scheduler.plan.policy import (
    AssignmentView,
    JobChoice,
    LevelView,
    WaitingJob,
    check_share,
    choose_by_level,
)


@attrs.frozen
class SmallestFirst:
    """An `AssignmentPolicy`: as `ByPriority`, but inside a level the job with the fewest bytes goes first.

    Where the blocks' sizes were not given, the one with the fewest blocks. A job that has waited for long goes before
    all others of its level, also if it failed before, so that none waits for ever.

    Attributes:
        max_wait_seconds: a job that is older than this goes first whatever its size, > 0.
        window: so many of a level's oldest jobs are compared, >= 1; what a choice costs.
        higher_level_share: see `ByPriority`.

    Raises:
        InvalidInput: a number is out of its range.
    """

    max_wait_seconds: float = 3600.0
    window: int = 1000
    higher_level_share: float = 0.0

    def __attrs_post_init__(self) -> None:
        check_share(self.higher_level_share)
        seconds: object = self.max_wait_seconds
        window: object = self.window
        if not isinstance(seconds, int | float) or not seconds > 0 or not isinstance(window, int) or window < 1:
            raise InvalidInput(f"max_wait_seconds is {seconds!r:.100} and window {window!r:.100}; give more than 0 "
                               f"seconds, and a whole number of at least 1")

    @property
    def name(self) -> str:
        """`"smallest_first"`."""
        return "smallest_first"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        """See `AssignmentPolicy.choose`. O(window * log window) for each level that is looked at."""
        def is_overdue(job: WaitingJob) -> bool:
            return now - job.added_at > self.max_wait_seconds

        def by_size(level: LevelView) -> Iterator[tuple[WaitingJob, Turn | None]]:
            again = iter(level.again)
            looked_at = list(islice(again, self.window))
            yield from ((job, None) for job in looked_at if is_overdue(job))
            left = iter(level.ready)
            while window := list(islice(left, self.window)):
                # Sorting is stable: of equal ones the oldest goes first, and so do those that have waited for long.
                window.sort(key=lambda job: (0, 0) if is_overdue(job) else (1 + job.size_bytes, job.blocks))
                yield from ((job, None) for job in window)
            yield from ((job, None) for job in looked_at if not is_overdue(job))
            yield from ((job, None) for job in again)

        return choose_by_level(view, by_size, "by level, then the smallest", self.higher_level_share)
