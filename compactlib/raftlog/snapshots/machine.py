# SPDX-License-Identifier: Apache-2.0
"""`StateMachine`, the protocol of a replicated state machine, and `LiveTracker`, which maintains its live set."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from compactlib.errors import InvalidInput, Unsorted
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


class LiveTracker:
    """The live set of a machine that reports each death. An entry is live from its application on.

    A snapshot then costs the changes since the last snapshot, instead of a scan of the whole state. After a restart it
    begins with the live set of the snapshot; the entries behind the snapshot are applied again.

    Args:
        live: the live set of the snapshot that the machine was restored from.
        applied: that snapshot's index, -1 without one.
    """

    def __init__(self, live: IndexSet | None = None, *, applied: int = -1) -> None:
        self._base: IndexSet = IndexSet() if live is None else live
        # The first and the last index of each run of entries applied since the last call of `live_set`, in turn.
        self._new: array[int] = array("Q")
        self._dead: list[int] = []
        self._applied: int = applied

    @property
    def applied(self) -> int:
        """The index applied last, -1 before the first."""
        return self._applied

    def apply(self, index: int) -> None:
        """Record that the machine has applied the entry of `index`, which is live now. O(1).

        Raises:
            Unsorted: this index or a higher index was applied before.
        """
        if index <= self._applied:
            raise Unsorted(f"entry {index} was applied after {self._applied}; apply each once, in the log's order",
                           previous=self._applied, found=index)
        if self._new and index == self._applied + 1:
            self._new[-1] = index
        else:
            self._new.extend((index, index))
        self._applied = index

    def mark_dead(self, indexes: Iterable[int]) -> None:
        """Record that entries are dead, in any order. An entry that leaves nothing in the state dies at once.

        Checked by the next `live_set`. O(1) for each.
        """
        self._dead.extend(indexes)

    def live_set(self) -> IndexSet:
        """The live set. O(live runs + deaths log deaths), with the deaths since the last call.

        Raises:
            InvalidInput: an entry was reported dead twice, or was never live; names the lowest. Nothing was changed.
        """
        applied = IndexSet.from_runs(zip(self._new[::2], self._new[1::2], strict=True))
        alive, dead = self._base | applied, IndexSet.from_iterable(self._dead)
        unknown = dead - alive
        if unknown or dead.count != len(self._dead):
            raise InvalidInput(f"{len(self._dead)} deaths were reported, of {dead.count} entries, {unknown.count} of "
                               f"which were not alive{f', the lowest is {unknown.first}' if unknown else ''}; report "
                               f"each death once")
        self._base = alive - dead
        self._new, self._dead = array("Q"), []
        return self._base

    def __repr__(self) -> str:
        return f"LiveTracker({self._base!r}, {len(self._dead)} deaths since, applied {self._applied})"
