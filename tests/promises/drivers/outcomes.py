# SPDX-License-Identifier: Apache-2.0
"""Outcomes that are returned, as errors that are raised; changes that a store has refused."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.testing import Change, Journal


@attrs.frozen
class Denied:
    """The store has said of what was tried that it changed nothing; `what` is the very object that is in the journal.
    """

    what: Any


def standing(journal: Journal) -> list[Change]:
    """The changes without those of which the store has said that nothing was changed."""
    denied = {id(change.what.what) for change in journal.changes if isinstance(change.what, Denied)}
    return [change for change in journal.changes
            if not isinstance(change.what, Denied) and (change.acknowledged or id(change.what) not in denied)]


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
