# SPDX-License-Identifier: Apache-2.0
"""The states in which a store may be after what a host tried; a driver says what one change makes of one state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from compactlib.testing import Journal

StateT = TypeVar("StateT")


class Tried(Protocol):
    """What is in the journal."""

    @property
    def opening(self) -> int:
        """Of which opening of the store; a change without an answer may still happen until that one ends."""


def possible_states(journal: Journal, first: StateT, after: Callable[[StateT, Any], StateT | None],
                    partly: Callable[[StateT, Any], Iterable[StateT]]) -> set[StateT]:
    """The states in which the store may be: one, if everything was acknowledged.

    Args:
        journal: what was tried.
        first: the state before.
        after: the state after a change that was acknowledged; `None` if it cannot happen in that state.
        partly: the other states in which a change may leave the store that was not acknowledged.
    """
    states, late = {first}, list[Tried]()
    for change in journal.changes:
        late = [each for each in late if each.opening == change.what.opening]
        if change.acknowledged:
            states = {new for state in states if (new := after(state, change.what)) is not None}
            assert states, f"{change.what} was acknowledged and cannot have happened"
        else:
            late.append(change.what)
        for each in late:
            states |= {new for state in states for new in partly(state, each)}
    return states
