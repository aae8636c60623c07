# SPDX-License-Identifier: Apache-2.0
"""Changes that a store refused."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.testing import Change, Journal


@attrs.frozen
class Denied:
    """The store raised an error of a change that changed nothing; `what` is the same object as in the journal."""

    what: Any


def standing(journal: Journal) -> list[Change]:
    """Return the changes without the denied ones."""
    denied = {id(change.what.what) for change in journal.changes if isinstance(change.what, Denied)}
    return [change for change in journal.changes
            if not isinstance(change.what, Denied) and (change.acknowledged or id(change.what) not in denied)]
