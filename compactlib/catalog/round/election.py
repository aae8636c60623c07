# SPDX-License-Identifier: Apache-2.0
"""Election of the coordinator: the node that was elected in the highest term known.

The host has an election of its own (the leader of its metastore group, in Ignite) and notifies each node of its
outcome through `CompactionService.elected`. Terms move by that alone: a message of a higher term is left unanswered
until the host has told of it, and one of a lower term is refused. Only a node that was told of no election yet, since
it has just begun, goes by the coordinators' messages, and forgets what they said at the first word of its host. Terms
only grow; one term belongs to one node.
"""

from __future__ import annotations

from enum import Enum

from compactlib.catalog.errors import StaleTerm, TwoCoordinators
from compactlib.errors import AuditFailed, InvalidInput


class Heard(Enum):
    """What a claim to be the coordinator of a term came to."""

    NEWER = "newer"
    """The term is higher than any before; its coordinator counts from now on."""
    KNOWN = "known"
    """It says what was known."""
    STALE = "stale"
    """The term is over."""
    CONTRADICTION = "contradiction"
    """Another node is the coordinator of this term."""
    UNKNOWN = "unknown"
    """The host has not told of so high a term."""


class Election:
    """The highest term known and its coordinator. Not for several threads at once.

    A node that restarts knows nothing at first. That is safe: whatever a coordinator of an old term can still do is
    bounded by reports that stay true (docs/catalog.md).
    """

    __slots__ = ("coordinator", "is_told", "term")

    def __init__(self) -> None:
        self.term: int = 0
        """The highest term known; 0 before the first."""
        self.coordinator: str | None = None
        """The name of its coordinator; `None` before the first."""
        self.is_told: bool = False
        """Whether the host has told of an election."""

    def hear(self, term: int, coordinator: str) -> Heard:
        """Take in that `coordinator` was elected in `term`, as the host says. O(1).

        Raises:
            InvalidInput: the term is below 1, or the name is empty.
        """
        if not self.is_told and (self.term, self.coordinator) != (term, coordinator):
            # Whatever a peer may have claimed before.
            self.term, self.coordinator = 0, None
        self.is_told = True
        return self._take(term, coordinator)

    def claimed(self, term: int, coordinator: str) -> Heard:
        """What a node's claim comes to that `coordinator` was elected in `term`. O(1). Raises as `hear`."""
        if self.is_told and term > self.term:
            return Heard.UNKNOWN
        return self._take(term, coordinator)

    def _take(self, term: int, coordinator: str) -> Heard:
        if term < 1 or not coordinator:
            raise InvalidInput(f"term {term}, coordinator {coordinator!r}: terms count from 1 and have a coordinator")
        if term > self.term:
            self.term, self.coordinator = term, coordinator
            return Heard.NEWER
        if term < self.term:
            return Heard.STALE
        return Heard.KNOWN if self.coordinator == coordinator else Heard.CONTRADICTION

    def error(self, heard: Heard, term: int, coordinator: str) -> StaleTerm | TwoCoordinators | None:
        """Why `coordinator` was refused in `term`; `None` if it was not."""
        if heard is Heard.STALE:
            return StaleTerm(term=term, current=self.term)
        if heard is Heard.CONTRADICTION:
            return TwoCoordinators(term=term, known=self.coordinator or "", claims=coordinator)
        return None

    def audit(self) -> None:
        """Check that a coordinator has a term.

        Raises:
            AuditFailed: it has none; this is a bug.
        """
        if self.term < 0 or (self.coordinator is not None and self.term < 1):
            raise AuditFailed(f"term {self.term} has coordinator {self.coordinator!r}")

    def __repr__(self) -> str:
        return f"Election(term={self.term}, coordinator={self.coordinator!r})"
