# SPDX-License-Identifier: Apache-2.0
"""Outcomes that are returned, as errors that are raised."""

from __future__ import annotations

from typing import Any


def result_of(outcome: Any) -> Any:
    """The outcome, unless it or a part of it is a failure, whose error is raised; what was skipped is no error."""
    for each in (outcome, *getattr(getattr(outcome, "stats", None), "failed", ())):
        error = getattr(each, "error", None)
        if isinstance(error, Exception):
            raise error
    return outcome


def has_changed(outcome: Any) -> bool:
    """Whether something was done, and not skipped."""
    return hasattr(outcome, "stats")
