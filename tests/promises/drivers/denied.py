# SPDX-License-Identifier: Apache-2.0
"""Changes that a store has refused."""

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
