# SPDX-License-Identifier: Apache-2.0
"""Several actors, each a thread, of which one runs at any time; whose turn is next is a pick at each of their requests.

The ordinary pick is that an actor goes on, so that `explore(run, most=2)` runs every schedule with at most two changes
of turn besides those at an actor's end, and a failure prints the changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from compactlib.errors import CompactlibError
from compactlib.testing import Choices, Request

PATIENCE_SECONDS = 60.0
Act: TypeAlias = Callable[["Turn"], object]
"""What one actor does; each request of its own stores is a step of its turn (`StoreInFront(store, turn)`)."""


class Turn:
    """One actor, as a step of the stores in front."""

    def __init__(self, turns: _Turns, name: str) -> None:
        self.name = name
        self.mine = threading.Semaphore(0)
        self._turns = turns

    def __call__(self, request: Request, act: Callable[[], Any]) -> Any:
        self._turns.pass_on(self, str(request))
        return act()

    def wait(self) -> None:
        assert self.mine.acquire(timeout=PATIENCE_SECONDS), f"{self.name} never had its turn: another one is stuck"


class _Turns:
    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.results: dict[str, object] = {}
        self.left: list[Turn] = []
        self.ended = threading.Event()

    def pass_on(self, turn: Turn, what: str) -> None:
        """Let another actor go on instead, or this one."""
        others = [each for each in self.left if each is not turn]
        chosen = self.choices.pick(f"{turn.name}: {what}", turn.name, *(each.name for each in others))
        if chosen != turn.name:
            next(each for each in others if each.name == chosen).mine.release()
            turn.wait()

    def play(self, turn: Turn, act: Act) -> None:
        turn.wait()
        try:
            self.results[turn.name] = act(turn)
        except BaseException as error:  # raised, or shown to the check, by the thread that waits
            self.results[turn.name] = error
        self.left.remove(turn)
        if self.left:
            chosen = self.choices.pick(f"{turn.name} has ended", *(each.name for each in self.left))
            next(each for each in self.left if each.name == chosen).mine.release()
        else:
            self.ended.set()


def take_turns(choices: Choices, actors: Mapping[str, Act]) -> dict[str, Any]:
    """Let all actors act to their end; the first one begins.

    Returns:
        By actor, what it returned, or the library's error that it raised.

    Raises:
        AssertionError: an actor waits for something that is not a turn.
        BaseException: an actor raised an error that is none of the library's.
    """
    turns = _Turns(choices)
    turns.left = [Turn(turns, name) for name in actors]
    threads = [threading.Thread(target=turns.play, args=(turn, actors[turn.name]), daemon=True) for turn in turns.left]
    for thread in threads:
        thread.start()
    turns.left[0].mine.release()
    assert turns.ended.wait(PATIENCE_SECONDS), "an actor is stuck"
    for found in turns.results.values():
        if isinstance(found, BaseException) and not isinstance(found, CompactlibError):
            raise found
    return turns.results
