# SPDX-License-Identifier: Apache-2.0
"""The possible states of a store after the changes of a journal; a driver defines the effect of one change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from compactlib.testing import Journal

StateT = TypeVar("StateT")
MOST_TIMES = 2
"""The number of times a change without an answer may happen: a part at once, and the rest later."""


class Tried(Protocol):
    """A change in the journal."""

    @property
    def opening(self) -> int:
        """The number of its opening; a change without an answer may happen until that opening ends."""


def possible_states(journal: Journal, first: StateT, after: Callable[[StateT, Any], Iterable[StateT]],
                    partly: Callable[[StateT, Any], Iterable[StateT]]) -> set[StateT]:
    """Return the possible states of the store: one, if all changes were acknowledged.

    Args:
        journal: the changes that were tried.
        first: the initial state.
        after: the states after an acknowledged change; empty if the change cannot happen in a state.
        partly: the other possible states after a change without an acknowledgement.
    """
    late = dict[int, Tried]()
    states: set[tuple[StateT, tuple[int, ...]]] = {(first, ())}  # with the numbers of late changes that have happened
    for number, change in enumerate(journal.changes):
        late = {each: what for each, what in late.items() if what.opening == change.what.opening}
        states = {(state, tuple(each for each in happened if each in late)) for state, happened in states}
        if change.acknowledged:
            states = {(new, happened) for state, happened in states for new in after(state, change.what)}
            assert states, f"{change.what} was acknowledged and cannot have happened"
        else:
            late[number] = change.what
        for each, what in late.items():
            states |= {(new, tuple(sorted((*happened, each)))) for state, happened in states
                       if happened.count(each) < MOST_TIMES for new in partly(state, what) if new != state}
    return {state for state, _ in states}
