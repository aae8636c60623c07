# SPDX-License-Identifier: Apache-2.0
"""What a compaction or a reclaim returns, as drivers see it."""

from __future__ import annotations

from typing import Any

from compactlib import Failed


def result_of(outcome: Any) -> Any:
    """The outcome of work that did not fail; what it failed with is raised."""
    if isinstance(outcome, Failed):
        raise outcome.error
    return outcome
