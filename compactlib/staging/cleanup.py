"""`TokenCleaner`: removes the entries of tokens that no branch names any more.

A token that leaves a branch record is *marked*. A pass over the marks removes the entries of each token whose mark is
older than the grace period, then the token's place in the register and its mark. Readers that still look into the
token find less and less there, and notice: each read looks at the branch record again afterwards. The grace period is
there so that this costs them a retry as rarely as possible.

A token that was never marked, because its process ended between the compare-and-set and the mark, is found by the
*sweep*: it is in the register and in no branch record. The sweep only marks it. Between entering a token in the
register and naming it in a record there is a moment, so the sweep spares what is young.

Everything may be run twice, at once, by several processes, and may end half-way at any step.

Source: `notes/staging.md` 1.13 [R].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import attrs

from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CompactlibError, InvalidInput
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.report import Table
from compactlib.staging.context import StagingContext
from compactlib.staging.names import StagingToken
from compactlib.staging.tokens import TokenMark

DEFAULT_GRACE_SECONDS = 3600.0
"""Must exceed the longest read, so that none has to start over for this."""
DEFAULT_ORPHAN_SECONDS = 86_400.0
"""Must exceed the time that a writer of a branch record may take between two of its steps."""
_BATCH = 1000
_ROUNDING_SECONDS = 0.001
"""Marks keep their time to the millisecond; a fresh one may lie that far ahead."""


@attrs.frozen(kw_only=True)
class CleanupStats:
    """What a pass did.

    Attributes:
        tokens_removed: tokens whose entries are all gone now.
        entries_removed: entries removed.
        young: marks that wait for their grace period to end.
        refused: marked tokens that a branch record names; they were left alone. More than 0 is a bug.
        orphans_found: tokens that the sweep marked.
        stopped: whether the budget ended the pass; the next one goes on where it stopped.
    """

    tokens_removed: int = 0
    entries_removed: int = 0
    young: int = 0
    refused: int = 0
    orphans_found: int = 0
    stopped: bool = False

    @property
    def changes(self) -> int:
        """How much was done; 0 if there was nothing to do."""
        return self.tokens_removed + self.entries_removed + self.orphans_found

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: every number."""
        return [attrs.asdict(self)]

    def _repr_html_(self) -> str:
        return Table.from_dicts(self.to_dicts())._repr_html_()


class TokenCleaner:
    """Cleans up the dropped tokens of one repository. Holds no state.

    Args:
        context: the repository's stores.
        grace_seconds: how long the entries of a dropped token stay.
        orphan_seconds: how old a token is before the sweep takes it for forgotten.

    Raises:
        InvalidInput: a number is negative.
    """

    def __init__(self, context: StagingContext, *, grace_seconds: float = DEFAULT_GRACE_SECONDS,
                 orphan_seconds: float = DEFAULT_ORPHAN_SECONDS) -> None:
        if not (grace_seconds >= 0 and orphan_seconds >= 0):
            raise InvalidInput(f"a grace of {grace_seconds} and {orphan_seconds} seconds for orphans; give 0 or more")
        self._context = context
        self._grace_seconds = grace_seconds
        self._orphan_seconds = orphan_seconds

    def run(self, *, budget: Budget | None = None) -> Outcome[CleanupStats]:
        """One pass over the marks: remove what is old enough. A write for each entry, and two for each token.

        Reads all branch records for every 1,000 marks; memory for as many marks, and the tokens of all branches.

        Args:
            budget: asked before every 1,000 entries.

        Returns:
            `Failed` with the store's error; what was done before it stays done, and the next pass goes on.
        """
        stats = CleanupStats()
        try:
            marks = iter(self._context.tokens.dropped())
            while batch := list(islice(marks, _BATCH)):
                stats = self._clean_all(batch, stats, budget)
        except BudgetSpent:
            stats = attrs.evolve(stats, stopped=True)
        except CompactlibError as error:
            self._report(stats)
            return Failed(error)
        self._report(stats)
        return Done(stats) if stats.changes or stats.refused or stats.stopped else Skipped(
            f"no dropped token is older than {self._grace_seconds} seconds; {stats.young} wait")

    def sweep(self, *, budget: Budget | None = None) -> Outcome[CleanupStats]:
        """Mark the tokens that no branch record names and nobody marked.

        Reads the register, all branch records and all marks; memory for the names of all tokens.

        Args:
            budget: asked before each mark.
        """
        try:
            count = self._sweep(Budget() if budget is None else budget)
        except CompactlibError as error:
            return Failed(error)
        stats = CleanupStats(orphans_found=count)
        self._report(stats)
        return Done(stats) if count else Skipped("every token older than "
                                                 f"{self._orphan_seconds} seconds is named or marked")

    def _sweep(self, budget: Budget) -> int:
        tokens, now = self._context.tokens, self._context.clock.now()
        # In this order: a token that a record names now was in the register before, and may be dropped meanwhile.
        old = [mark for mark in tokens.registered() if _is_older(mark, now, self._orphan_seconds)]
        named = self._named_tokens()
        marked = {mark.token for mark in tokens.dropped()}
        orphans = [mark for mark in old if mark.token not in named and mark.token not in marked]
        for mark in orphans:
            budget.check()
            tokens.mark_dropped([mark.token], mark.branch)
        return len(orphans)

    def _clean_all(self, marks: Sequence[TokenMark], stats: CleanupStats, budget: Budget | None) -> CleanupStats:
        now = self._context.clock.now()
        old = [mark for mark in marks if _is_older(mark, now, self._grace_seconds)]
        stats = attrs.evolve(stats, young=stats.young + len(marks) - len(old))
        # Looked at after the marks: a token that is marked now comes back into no record.
        named = self._named_tokens() if old else frozenset()
        for mark in old:
            stats = self._clean(mark, named, stats, budget)
        return stats

    def _named_tokens(self) -> frozenset[StagingToken]:
        return frozenset(token for found in self._context.branches.list() for token in found.record.tokens)

    def _clean(self, mark: TokenMark, named: frozenset[StagingToken], stats: CleanupStats,
               budget: Budget | None) -> CleanupStats:
        tokens = self._context.tokens
        if mark.token in named:
            self._context.observer.event("staging_marked_token_in_use", {
                "repository": self._context.repository, "branch": mark.branch, "token": mark.token})
            return attrs.evolve(stats, refused=stats.refused + 1)
        removed = _BATCH
        while removed == _BATCH:
            if budget is not None:
                budget.check()
            removed = tokens.remove_prefix(mark.token, b"", limit=_BATCH)
            stats = attrs.evolve(stats, entries_removed=stats.entries_removed + removed)
        tokens.forget(mark.token)
        return attrs.evolve(stats, tokens_removed=stats.tokens_removed + 1)

    def _report(self, stats: CleanupStats) -> None:
        observer, labels = self._context.observer, {"repository": self._context.repository}
        for name, value in (("staging_tokens_cleaned", stats.tokens_removed),
                            ("staging_entries_cleaned", stats.entries_removed),
                            ("staging_orphans_found", stats.orphans_found)):
            if value:
                observer.count(name, value, labels)
        observer.event("staging_cleanup_backlog", {**labels, "value": stats.young})


def _is_older(mark: TokenMark, now: float, seconds: float) -> bool:
    return now - mark.at >= seconds - _ROUNDING_SECONDS
