# SPDX-License-Identifier: Apache-2.0
"""What the log needs of a replicated state machine, and the live set kept up to date without asking it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from compactlib.errors import InvalidInput, Unsorted
from compactlib.indexset import IndexSet, IndexSetBuilder
from compactlib.raftlog.model.values import Entry

if TYPE_CHECKING:
    from typing_extensions import Buffer


class StateMachine(Protocol):
    """A deterministic machine over the entries of a log. Called by one thread at a time.

    What it needs of an entry may stay in the log: then the entry is live, and the state of a snapshot holds its index
    instead of its content.

    A machine whose live entries are to be clumped (`plan_clump`) has one more command, "rewrite entry i": it holds the
    content of entry i again, and takes its place if i is still live when it is applied; else it changes nothing, and
    is dead itself. `examples/kv_machine.py` has one.
    """

    def apply(self, entry: Entry) -> Any:
        """Carry out one entry. Entries come in the order of the log, each once; the answer is the host's."""

    def live_indexes(self) -> IndexSet | Iterable[int]:
        """The entries that the state now relies on, in any order. An empty answer says that there are none."""

    def snapshot(self) -> Iterable[Buffer]:
        """The state now, in pieces of any size.

        The pieces may be asked for while later entries are applied, in another thread: give those of a copy, or of
        values that do not change.
        """

    def restore(self, pieces: Iterator[bytes]) -> None:
        """Forget everything and take the state that `snapshot` gave, which comes in pieces of other sizes."""


class LiveTracker:
    """The live set of a machine that reports deaths as they happen: an entry is live from its application on.

    A snapshot then costs what has changed since the one before, not a walk over the whole state.
    What survives a restart is the live set stored with the snapshot; the entries behind it are applied again.

    Args:
        live: the live set of the snapshot that the machine was restored from.
        applied: that snapshot's index, -1 without one.
    """

    def __init__(self, live: IndexSet | None = None, *, applied: int = -1) -> None:
        self._base: IndexSet = IndexSet() if live is None else live
        self._new: IndexSetBuilder = IndexSetBuilder()
        self._dead: list[int] = []
        self._applied: int = applied

    @property
    def applied(self) -> int:
        """The index applied last, -1 before the first."""
        return self._applied

    def apply(self, index: int) -> None:
        """The machine has applied the entry of `index`, which is live from here on. O(1).

        Raises:
            Unsorted: this index or a later one was applied before.
        """
        if index <= self._applied:
            raise Unsorted(f"entry {index} was applied after {self._applied}; apply each once, in the log's order",
                           previous=self._applied, found=index)
        self._new.append(index)
        self._applied = index

    def mark_dead(self, indexes: Iterable[int]) -> None:
        """The machine needs these entries no more, in any order. An entry that leaves nothing behind dies at once.

        Checked by the next `live_set`. O(1) for each.
        """
        self._dead.extend(indexes)

    def live_set(self) -> IndexSet:
        """What is live now. O(live runs + deaths log deaths) since the last call.

        Raises:
            InvalidInput: an entry was reported dead twice, or was never live; names the lowest. Nothing was changed.
        """
        alive, dead = self._base | self._new.build(), IndexSet.from_iterable(self._dead)
        unknown = dead - alive
        if unknown or dead.count != len(self._dead):
            raise InvalidInput(f"{len(self._dead)} deaths were reported, of {dead.count} entries, {unknown.count} of "
                               f"which were not alive{f', the lowest is {unknown.first}' if unknown else ''}; report "
                               f"each death once")
        self._base = alive - dead
        self._new, self._dead = IndexSetBuilder(), []
        return self._base

    def __repr__(self) -> str:
        return f"LiveTracker({self._base!r}, {len(self._dead)} deaths since, applied {self._applied})"
