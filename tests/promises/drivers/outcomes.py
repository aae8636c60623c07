# SPDX-License-Identifier: Apache-2.0
"""What a compaction or a reclaim came to, whether it returns an outcome or raises."""

from __future__ import annotations

from typing import Any

from compactlib import Failed


def result_of(outcome: Any) -> Any:
    """The outcome of work that did not fail.

    Raises:
        CompactlibError: that of a `Failed`.
    """
    if isinstance(outcome, Failed):
        raise outcome.error
    return outcome
