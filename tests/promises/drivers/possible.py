# SPDX-License-Identifier: Apache-2.0
"""The states in which a store may be after what a host tried; a driver says what one change makes of one state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from compactlib.testing import Journal

StateT = TypeVar("StateT")
MOST_TIMES = 2
"""How often a change without an answer may happen: a part of it now, and the rest later."""


class Tried(Protocol):
    """What is in the journal."""

    @property
    def opening(self) -> int:
        """Of which opening of the store; a change without an answer may still happen until that one ends."""


def possible_states(journal: Journal, first: StateT, after: Callable[[StateT, Any], Iterable[StateT]],
                    partly: Callable[[StateT, Any], Iterable[StateT]]) -> set[StateT]:
    """The states in which the store may be: one, if everything was acknowledged.

    Args:
        journal: what was tried.
        first: the state before.
        after: the states after a change that was acknowledged; none if it cannot happen in that state.
        partly: the other states in which a change may leave the store that was not acknowledged.
    """
    late = dict[int, Tried]()
    states: set[tuple[StateT, tuple[int, ...]]] = {(first, ())}  # with what of the late ones has happened in it
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
