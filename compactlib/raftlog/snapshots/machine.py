# SPDX-License-Identifier: Apache-2.0
"""`StateMachine`, the protocol of a replicated state machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from compactlib.indexset import IndexSet
from compactlib.raftlog.values import Entry

if TYPE_CHECKING:
    from typing_extensions import Buffer


class StateMachine(Protocol):
    """A deterministic machine over the entries of a log. Called by a single thread at a time.

    The content of an entry may stay in the log: then the entry is live, and the state of a snapshot has its index
    instead of its content.

    A machine whose live entries are clumped (`plan_clump`) has the command "rewrite entry i": it has the content of
    entry i, and replaces entry i if that is still live when the command is applied; else it changes nothing, and is
    dead itself. `examples/kv_machine.py` has such a machine.
    """

    def apply(self, entry: Entry) -> Any:
        """Apply an entry. Called for each entry once, in the order of the log; the result is the host's."""

    def live_indexes(self) -> IndexSet | Iterable[int]:
        """The indexes of the entries that the state needs, in any order; empty if it needs no entry."""

    def snapshot(self) -> Iterable[Buffer]:
        """The current state, in pieces of any size.

        The iterator may run in another thread while later entries are applied: iterate over a copy, or over immutable
        values.
        """

    def restore(self, pieces: Iterator[bytes]) -> None:
        """Replace the state by a state that `snapshot` has returned; the pieces have other sizes."""
