# SPDX-License-Identifier: Apache-2.0
"""Outcomes that are returned, as errors that are raised; changes that a store has refused."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib import CompactionFailed, Skipped
from compactlib.outcome import Ending, is_empty, raised
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
    """The report of what was done; the first failure of a part is raised, what was skipped is an empty report."""
    try:
        report = Ending(why=outcome.reason) if isinstance(outcome, Skipped) else raised(outcome)
    except CompactionFailed as failed:
        raise next(iter(failed.failures.values())) from failed
    for each in getattr(report, "failed", ()):
        raise each.error
    return report


def has_changed(report: Any) -> bool:
    """Whether something was done, and not skipped."""
    return report is not None and not is_empty(report)
