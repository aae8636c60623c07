# SPDX-License-Identifier: Apache-2.0
"""Election of the coordinator: the node that was elected in the highest term known.

The host has an election of its own (the leader of its metastore group, in Ignite) and notifies each node of its
outcome through `CompactionService.elected`. Nodes also learn terms from each other's messages, so a deposed coordinator
is refused by every node that knows a higher one, from wherever it heard. Terms only grow; one term belongs to one node.
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
    """It says what was known, or names the coordinator of a term that had been known without one."""
    STALE = "stale"
    """The term is over."""
    CONTRADICTION = "contradiction"
    """Another node is the coordinator of this term."""


class Election:
    """The highest term known and its coordinator. Not for several threads at once.

    A node that restarts knows nothing at first. That is safe: whatever a coordinator of an old term can still do is
    bounded by reports that stay true (docs/catalog-protocol.md).
    """

    __slots__ = ("coordinator", "term")

    def __init__(self) -> None:
        self.term: int = 0
        """The highest term known; 0 before the first."""
        self.coordinator: str | None = None
        """The name of its coordinator; `None` while only the term is known."""

    def hear(self, term: int, coordinator: str) -> Heard:
        """Take in that `coordinator` was elected in `term`. O(1).

        Raises:
            InvalidInput: the term is below 1, or the name is empty.
        """
        if term < 1 or not coordinator:
            raise InvalidInput(f"term {term}, coordinator {coordinator!r}: terms count from 1 and have a coordinator")
        if term > self.term:
            self.term, self.coordinator = term, coordinator
            return Heard.NEWER
        if term < self.term:
            return Heard.STALE
        if self.coordinator is None:
            self.coordinator = coordinator
        return Heard.KNOWN if self.coordinator == coordinator else Heard.CONTRADICTION

    def hear_term(self, term: int) -> Heard:
        """Take in that there is such a term, whichever node coordinates it. O(1)."""
        if term > self.term:
            self.term, self.coordinator = term, None
            return Heard.NEWER
        return Heard.KNOWN if term == self.term else Heard.STALE

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
