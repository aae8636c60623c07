# SPDX-License-Identifier: Apache-2.0
"""A crash, and a second crash during the recovery from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from compactlib.files import Files, LocalFiles
from compactlib.testing import Recording, explore_crashes, record


def explore_recovery(recording: Recording, recover: Callable[[Path, Files], object],
                     check: Callable[[Path, Sequence[Any]], object], *, recoveries: int, limit_per_point: int,
                     seed: int = 0, points: Iterable[int] | None = None) -> int:
    """Crash, recover, crash the recovery at every point, recover again, and only then call the check.

    Args:
        recording: from `record`.
        recover: recovers a folder, which it changes through the given files alone.
        check: as for `explore_crashes`.
        recoveries: the number of points of first crashes, drawn; each point with nothing lost and with everything lost.
        limit_per_point: as for `explore_crashes`; for the crash of the recovery.
        seed: chooses samples, and the points of the first crashes.
        points: as for `explore_crashes`; for the first crash.

    Returns:
        The number of folders that were checked.
    """
    count, every = 0, list(range(len(recording.operations) + 1) if points is None else points)

    def crash_again(folder: Path, acknowledged: Sequence[Any]) -> None:
        nonlocal count

        def recover_again(folder: Path, _: Sequence[Any]) -> None:
            recover(folder, LocalFiles())
            check(folder, acknowledged)

        count += explore_crashes(record(folder, recover), recover_again, limit_per_point=limit_per_point, seed=seed)

    drawn = random.Random(seed).sample(every, min(recoveries, len(every)))
    explore_crashes(recording, crash_again, limit_per_point=2, seed=seed, points=drawn)
    return count
