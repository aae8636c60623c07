"""`StagingArea`: the branches of one repository, over a key-value store and the committed layer."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterator

from compactlib.clock import Clock, SystemClock
from compactlib.kv import KVStore
from compactlib.observe import Observer
from compactlib.staging.audit import audit
from compactlib.staging.branch import Branch
from compactlib.staging.commits import Commit
from compactlib.staging.committed import Committed
from compactlib.staging.context import StagingContext
from compactlib.staging.diff_cache import DiffCache
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound, PreconditionFailed
from compactlib.staging.events import StagingEvents
from compactlib.staging.names import CommitId
from compactlib.staging.options import StagingOptions
from compactlib.staging.read import CommittedView
from compactlib.staging.record import BranchRecord
from compactlib.staging.refs import resolve, resolve_present
from compactlib.staging.status import AreaStatus, BranchStatus

_LONG_SECONDS = 10.0
"""What making a branch may take before its commit is looked at once more."""


class StagingArea:
    """The branches of one repository. Keeps caches and nothing else: any number may be open, in any processes.

    Args:
        store: where branches, commits and staged entries are. The area does not close it.
        committed: where committed records are.
        repository: tells repositories on one store apart.
        options: limits and numbers of tries.
        clock: dates commits and tokens, and waits between tries.
        random: draws tokens, nonces, write ids and waits. Two areas must never draw the same: the default asks the
            operating system; give a seeded one in tests only.
        events: is told what happens on branches, such as a sensor of compactions.
        observer: is told what an operator may want to know.

    Raises:
        InvalidInput: it is no name of a repository.
    """

    def __init__(self, store: KVStore, committed: Committed, *, repository: str = "main",
                 options: StagingOptions | None = None, clock: Clock | None = None,
                 random: random_module.Random | None = None, events: StagingEvents | None = None,
                 observer: Observer | None = None) -> None:
        self._context = StagingContext.over(
            store, committed, repository, options=options or StagingOptions(), clock=clock or SystemClock(),
            random=random or random_module.SystemRandom(), events=events or StagingEvents(),
            observer=observer or Observer())
        self._cache = DiffCache(committed, self._context.options.diff_cache_bytes)

    @property
    def context(self) -> StagingContext:
        """What the compactor, the cleanup and the garbage collection of this repository work with."""
        return self._context

    def branch(self, name: str) -> Branch:
        """A branch by its name. No request: whether it exists is found out by its methods.

        Raises:
            InvalidInput: it is no name of a branch.
        """
        return Branch(self._context, self._cache, name)

    def create_branch(self, name: str, source: str | None = None) -> Branch:
        """Make a branch at the HEAD of another one, or at a commit; without a source it is empty.

        What is uncommitted on the source stays there. Costs two writes, a read of the source, and three requests to
        the object store, whatever the size.

        Raises:
            BranchExists: there is a branch of this name.
            BranchNotFound, CommitNotFound: there is no such source.
            MetaRangeNotFound: no branch has reached the commit for long, and its records were collected.
            BeingCollected: they are being collected at this moment.
            InvalidInput: it is no name of a branch.
        """
        branch = self.branch(name)
        context = self._context
        began = context.clock.monotonic()
        commit_id = None if source is None else resolve_present(context, source)
        record = BranchRecord(commit_id=commit_id, staging_token=context.tokens.issue(name))
        context.branches.create(name, record)
        if context.clock.monotonic() - began > _LONG_SECONDS:
            self._look_again(record, name)
        return branch

    def _look_again(self, record: BranchRecord, name: str) -> None:
        """After standing still for long while a branch was made: its commit and its token may be gone meanwhile.

        The sweep may have taken the token for an orphan, and a cleanup be about to empty it; writes go to another one.
        """
        context = self._context
        metarange_id = context.commits.metarange_of(record.commit_id)
        try:
            if metarange_id is not None:
                context.committed.claim(metarange_id)
        except (MetaRangeNotFound, BeingCollected):
            context.branches.delete(name, _expecting(name, record))
            raise
        context.branches.update(name, lambda now: now.sealed_with(context.tokens.issue(name)))

    def delete_branch(self, name: str, *, expected: BranchRecord | None = None) -> None:
        """Delete a branch and everything uncommitted on it. Its commits stay.

        Args:
            name: which branch.
            expected: the record that the branch must have.

        Raises:
            BranchNotFound: there is no such branch.
            PreconditionFailed: the branch has another record; nothing was deleted.
            TooManyTries: others changed the branch under every try.
        """
        record = self._context.branches.delete(name, _expecting(name, expected))
        self._context.drop_tokens(name, record, None)
        self._context.events.branch_deleted(name)

    def branches(self, prefix: str = "") -> Iterator[Branch]:
        """Every branch whose name begins so, in order of the names' bytes."""
        for found in self._context.branches.list(prefix):
            yield self.branch(found.branch)

    def at(self, ref: str) -> CommittedView:
        """The records of a commit, or of a branch's HEAD as it is now.

        Raises:
            BranchNotFound, CommitNotFound: there is no such thing.
        """
        commit_id = resolve(self._context, ref)
        return CommittedView(self._context, ref, commit_id, self._context.commits.metarange_of(commit_id))

    def commit(self, commit_id: CommitId) -> Commit:
        """A commit by its id.

        Raises:
            CommitNotFound: there is none.
        """
        return self._context.commits.get(commit_id)

    def status(self) -> AreaStatus:
        """All branches and the staging tokens in numbers. Reads every branch record and every mark of a token."""
        context = self._context
        return AreaStatus(
            repository=context.repository,
            branches=tuple(BranchStatus.of(context, found.branch, found.record) for found in context.branches.list()),
            registered_tokens=sum(1 for _ in context.tokens.registered()),
            dropped_tokens=sum(1 for _ in context.tokens.dropped()))

    def audit(self) -> None:
        """Check what the repository's records promise each other. Reads all records and commits, not the entries.

        Raises:
            AuditFailed: they contradict each other; the message has the numbers.
            CorruptData: a record is damaged.
        """
        audit(self._context)

    def __repr__(self) -> str:
        return f"StagingArea({self._context.repository!r} over {self._context.store!r})"


def _expecting(name: str, expected: BranchRecord | None) -> Callable[[BranchRecord], None]:
    def check(record: BranchRecord) -> None:
        if expected is not None and record != expected:
            raise PreconditionFailed(branch=name, key=b"")

    return check
