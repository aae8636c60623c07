# SPDX-License-Identifier: Apache-2.0
"""`TokenCleaner`: removes the entries of tokens that no branch names any more.

A token that leaves a branch record is *marked*. A pass over the marks removes the entries of each token whose mark is
older than the grace period, then the token's place in the register and its mark. Readers that still look into the
token find less and less there, and notice: each read looks at the branch record again afterwards. The grace period is
there so that this costs them a retry as rarely as possible.

A token that was never marked, because its process ended between the compare-and-set and the mark, is found by the
*sweep*: it is in the register and in no branch record. The sweep only marks it. Between entering a token in the
register and naming it in a record there is a moment, so the sweep spares what is young. A process that stood still in
that moment for longer (a suspended machine) has read the branch's record before; so the sweep first writes the record
anew as it is, and the compare-and-set that would name the token finds another one.

Marks are dated by the clocks of those who drop tokens. One that lies far in the future is dated anew, so that a clock
that went wrong once keeps nothing for ever; one that lies in the past only shortens the grace period, which no reader
depends on. A mark of a token that a record names is taken back.

Everything may be run twice, at once, by several processes, and may end half-way at any step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import islice

import attrs

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv.errors import PartlyWritten
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.report import Printed
from compactlib.runtime.budget import Budget
from compactlib.staging.context import StagingContext
from compactlib.staging.names import StagingToken
from compactlib.staging.tokens import TokenMark

_BATCH = 1000
_MAX_SKEW_SECONDS = 3600.0
"""Marks that lie further in the future were made by a clock gone wrong."""
_ROUNDING_SECONDS = 0.001
"""Marks keep their time to the millisecond; a fresh one may lie that far ahead."""


@attrs.frozen(kw_only=True)
class CleanupStats(Printed):
    """What a pass did.

    Attributes:
        tokens_removed: tokens whose entries are all gone now.
        entries_removed: entries removed.
        young: marks that wait for their grace period to end.
        refused: marked tokens that a branch record names: left alone, and the marks taken back.
        orphans_found: tokens that the sweep marked.
    """

    tokens_removed: int = 0
    entries_removed: int = 0
    young: int = 0
    refused: int = 0
    orphans_found: int = 0

    @property
    def changes(self) -> int:
        """How much was done; 0 if there was nothing to do."""
        return self.tokens_removed + self.entries_removed + self.orphans_found

    def plus(self, other: CleanupStats) -> CleanupStats:
        """The sums of both."""
        return CleanupStats(**{name: value + getattr(other, name) for name, value in attrs.asdict(self).items()})


class TokenCleaner:
    """Cleans up the dropped tokens of one repository. Holds no state.

    Args:
        context: the repository's stores.
        grace_seconds: how long the entries of a dropped token stay; default that of the options.
        orphan_seconds: how old a token is before the sweep takes it for forgotten; default that of the options.

    Raises:
        InvalidInput: a number is negative.
    """

    def __init__(self, context: StagingContext, *, grace_seconds: float | None = None,
                 orphan_seconds: float | None = None) -> None:
        grace_seconds = context.options.grace_seconds if grace_seconds is None else grace_seconds
        orphan_seconds = context.options.orphan_seconds if orphan_seconds is None else orphan_seconds
        if not (grace_seconds >= 0 and orphan_seconds >= 0):
            raise InvalidInput(f"a grace of {grace_seconds} and {orphan_seconds} seconds for orphans; give 0 or more")
        self._context = context
        self._grace_seconds = grace_seconds
        self._orphan_seconds = orphan_seconds

    def run(self, *, budget: Budget | None = None) -> Outcome[CleanupStats]:
        """One pass over the marks: remove what is old enough.

        Where the store can change as many at once, a read and a write for every 1,000 entries of a token, one more read
        for each token, and a write for every few hundred tokens.

        Reads all branch records for every 1,000 marks; memory for as many marks, and the tokens of all branches.

        Args:
            budget: asked before every 1,000 entries.

        Returns:
            `Failed` with the store's or the budget's error; what was done before it stays done, and the next pass goes
            on where this one stopped.
        """
        return self._passed(self._clean_marked, budget, lambda stats: (
            f"{stats.young} dropped tokens wait until they are older than grace_seconds={self._grace_seconds}"))

    def sweep(self, *, budget: Budget | None = None) -> Outcome[CleanupStats]:
        """Mark the tokens that no branch record names and that have no mark.

        Reads the register, all branch records and all marks; memory for the names of all tokens.

        Args:
            budget: asked before every 1,000 marks.
        """
        return self._passed(self._sweep, budget, lambda _: (
            f"every token older than orphan_seconds={self._orphan_seconds} is named or marked"))

    def _passed(self, work: Callable[[Counter[str], Budget], None], budget: Budget | None,
                why_nothing: Callable[[CleanupStats], str]) -> Outcome[CleanupStats]:
        """The outcome of some work, which counts what it does; the observer is told."""
        counts: Counter[str] = Counter()
        failed: CompactlibError | None = None
        try:
            work(counts, Budget() if budget is None else budget)
        except CompactlibError as error:
            failed = error
        stats = CleanupStats(**counts)
        self._report(stats)
        did_something = bool(stats.changes or stats.refused)
        if failed is not None:
            return Failed(failed, "partly") if did_something else Failed(failed)
        return Done(stats) if did_something else Skipped(why_nothing(stats))

    def _clean_marked(self, counts: Counter[str], budget: Budget) -> None:
        marks = self._context.tokens.dropped()
        while batch := list(islice(marks, _BATCH)):
            self._clean_all(batch, counts, budget)

    def _sweep(self, counts: Counter[str], budget: Budget) -> None:
        tokens, now = self._context.tokens, self._context.clock.now()
        # In this order: a token that a record names now was in the register before, and may be dropped meanwhile.
        registered = list(tokens.registered())
        self._date_anew(registered, now, is_dropped=False)
        old = [mark for mark in registered if _is_older(mark, now, self._orphan_seconds)]
        named = self._named_tokens()
        self._enter_named(named, registered)
        marked = {mark.token for mark in tokens.dropped()}
        orphans = [mark for mark in old if mark.token not in named and mark.token not in marked]
        if orphans:
            # A writer about to name one of them has read the record before, and cannot write it any more.
            named = self._named_tokens(fenced={mark.branch for mark in orphans})
            orphans = [mark for mark in orphans if mark.token not in named]
        for at in range(0, len(orphans), _BATCH):
            budget.check()
            batch = orphans[at:at + _BATCH]
            tokens.mark_dropped({mark.token: mark.branch for mark in batch})
            counts["orphans_found"] += len(batch)

    def _enter_named(self, named: Mapping[StagingToken, str], registered: Sequence[TokenMark]) -> None:
        """Enter tokens that are named and not in the register: whoever made the branch ended before that."""
        for token in named.keys() - {mark.token for mark in registered}:
            self._context.tokens.enter(token, named[token])

    def _date_anew(self, marks: Sequence[TokenMark], now: float, *, is_dropped: bool) -> None:
        for mark in marks:
            if mark.at > now + _MAX_SKEW_SECONDS:
                self._context.observer.event("staging_mark_dated_anew", {
                    "repository": self._context.repository, "branch": mark.branch, "token": mark.token,
                    "seconds_ahead": mark.at - now})
                self._context.tokens.date_anew(mark, is_dropped=is_dropped)

    def _clean_all(self, marks: Sequence[TokenMark], counts: Counter[str], budget: Budget) -> None:
        now = self._context.clock.now()
        old = [mark for mark in marks if _is_older(mark, now, self._grace_seconds)]
        counts["young"] += len(marks) - len(old)
        # Looked at after the marks: a token that is marked now comes back into no record.
        named = self._named_tokens() if old else {}
        self._date_anew(marks, now, is_dropped=True)
        emptied: list[TokenMark] = []
        try:
            for mark in old:
                self._clean(mark, named, counts, budget, emptied)
        finally:
            self._context.tokens.forget_emptied(emptied)
            counts["tokens_removed"] += len(emptied)

    def _named_tokens(self, fenced: Set[str] = frozenset()) -> dict[StagingToken, str]:
        """The tokens that records name, and their branches; the records of some are written anew first."""
        branches = self._context.branches
        found = list(branches.list())
        named = itertools.chain((each for each in found if each.branch not in fenced),
                                branches.fence(each for each in found if each.branch in fenced))
        return {token: each.branch for each in named for token in each.record.tokens}

    def _clean(self, mark: TokenMark, named: Mapping[StagingToken, str], counts: Counter[str], budget: Budget,
               emptied: list[TokenMark]) -> None:
        tokens = self._context.tokens
        if mark.token in named:
            self._context.observer.event("staging_marked_token_in_use", {
                "repository": self._context.repository, "branch": mark.branch, "token": mark.token})
            tokens.unmark_dropped(mark)
            counts["refused"] += 1
            return
        removed = _BATCH
        while removed == _BATCH:
            budget.check()
            try:
                removed = tokens.remove_some(mark.token, _BATCH)
            except PartlyWritten as error:
                counts["entries_removed"] += len(error.written)
                raise
            counts["entries_removed"] += removed
        emptied.append(mark)

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
