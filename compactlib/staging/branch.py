# SPDX-License-Identifier: Apache-2.0
"""`Branch`: reads, writes, commits and resets of one branch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from compactlib.budget import Budget
from compactlib.kv.store import Exists
from compactlib.staging import head, writes
from compactlib.staging.commits import Commit, copied
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import RecordNotFound
from compactlib.staging.listing import DiffPage, Listed, ListPage, ListRequest
from compactlib.staging.names import CommitId, branch_key
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import BranchStatus, CommitReport, ResetReport
from compactlib.staging.values import Difference, MergeStrategy, MetaRangeId, Record, check_key
from compactlib.staging.view import BranchView, CommittedView, checked_keys, consistently


class Branch:
    """One branch of a `Repository`. It has no state: threads may share it, and the branch need not exist.

    Every method may raise `BranchNotFound`, the errors of the key-value store and the object store, `CorruptData` for
    damaged bytes and `Unsupported` for bytes of a newer release. A read that fails raises and returns nothing.

    Args:
        context: the stores of the repository.
        name: the branch's name.

    Raises:
        InvalidInput: it is no name of a branch.
    """

    def __init__(self, context: StagingContext, name: str) -> None:
        branch_key(name)
        self._context = context
        self._name = name

    @property
    def name(self) -> str:
        """The branch's name."""
        return self._name

    @property
    def repository(self) -> str:
        """The name of its repository."""
        return self._context.repository

    # --- reads

    def get(self, key: bytes) -> Record:
        """Return the newest record of a key: staged, compacted or committed.

        Costs a request for the branch, a request for the staging token, a request for all sealed tokens, at most one
        range, and a second request for the branch.

        Raises:
            RecordNotFound: the key has no record.
            TooManyTries: the branch changed under every try.
        """
        check_key(key)
        record = consistently(self._context, self._name, lambda view: view.find_many((key,))[key],
                              holds=lambda place: place.in_staging_token).record
        if record is None:
            raise RecordNotFound(ref=self._name, key=key)
        return record

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """Return the records of the keys that exist, each as of some moment of the call.

        Costs two requests for the branch, one for the staging token, one for every ten sealed tokens, and the ranges;
        more where the store reads fewer keys in one request.

        Raises:
            InvalidInput: more than 1000 were given.
        """
        wanted = checked_keys(keys)
        found = consistently(self._context, self._name, lambda view: view.find_many(wanted))
        return {key: place.record for key, place in found.items() if place.record is not None}

    def head(self) -> CommittedView:
        """Return a view of the present HEAD, without uncommitted changes. It does not follow the branch."""
        return CommittedView.of(self._context, self._name)

    def list(self, *, prefix: bytes = b"", delimiter: bytes = b"", after: bytes | None = None, limit: int = 1000,
             ) -> ListPage:
        """Return one page of the branch's keys, in order.

        Args:
            prefix: only keys with this prefix.
            delimiter: fold the keys that contain it after the prefix to common prefixes.
            after: begin after this key, or after all keys with this common prefix: `next_after` of the previous page.
            limit: number of entries, 1 to 10,000.

        Raises:
            InvalidInput: `limit` is out of its range.
        """
        request = ListRequest(prefix=prefix, delimiter=delimiter, after=after, limit=limit,
                              max_scanned=self._context.options.max_scanned)

        def read(view: BranchView) -> tuple[ListPage, BranchRecord]:
            return view.page(request), view.record

        page, record = consistently(self._context, self._name, read)
        if page.tombstones:
            self._context.activity.listed_tombstones(self._name, record, page.tombstones)
        return page

    def entries(self, *, prefix: bytes = b"", delimiter: bytes = b"", page_limit: int = 1000) -> Iterator[Listed]:
        """Yield all keys in order, page by page, each as of some moment of the call for its page."""
        after: bytes | None = None
        while True:
            page = self.list(prefix=prefix, delimiter=delimiter, after=after, limit=page_limit)
            yield from page.entries
            after = page.next_after
            if after is None:
                return

    def diff(self, *, prefix: bytes = b"", after: bytes | None = None, limit: int = 1000) -> DiffPage:
        """Return one page of the uncommitted changes: the keys that the branch reads differently than HEAD.

        Args:
            prefix: only keys with this prefix.
            after: begin after this key.
            limit: number of differences, 1 to 10,000.
        """
        request = ListRequest(prefix=prefix, after=after, limit=limit, max_scanned=self._context.options.max_scanned)
        return consistently(self._context, self._name, lambda view: view.diff_page(request))

    def differences(self, *, prefix: bytes = b"", page_limit: int = 1000) -> Iterator[Difference]:
        """Yield all uncommitted changes, page by page."""
        after: bytes | None = None
        while True:
            page = self.diff(prefix=prefix, after=after, limit=page_limit)
            yield from page.differences
            after = page.next_after
            if after is None:
                return

    def is_dirty(self) -> bool:
        """Return whether the branch has uncommitted changes. Stops at the first."""
        return consistently(self._context, self._name, lambda view: view.first_uncommitted() is not None)

    # --- writes

    def put(self, key: bytes, data: bytes) -> None:
        """Write a record. Costs three requests: the branch, the record, and the branch again.

        Raises:
            TooManyTries: the staging token was replaced during every try; the value may be visible (G4).
            OutcomeUnknown: the store did not answer; the value may be visible now or later.
        """
        writes.put_many(self._context, self._name, {key: data})

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Write up to 1000 records and acknowledge them together. They do not become visible in one step.

        Costs three requests; more where the store writes fewer keys in one request.

        Raises:
            InvalidInput: more were given; nothing was written.
            OutcomeUnknown: the store failed; some may be written. Repeat the call.
        """
        writes.put_many(self._context, self._name, items)

    def put_if(self, key: bytes, data: bytes, expected: Record | Exists | None) -> None:
        """Write a record if the key has the expected state: a record (by identity), `EXISTS`, or `None` (no record).

        Raises:
            PreconditionFailed: the key has another state; nothing was written.
            OutcomeUnknown: the store did not answer, and the outcome can no longer be read.
        """
        writes.put_if(self._context, self._name, key, data, expected)

    def update(self, key: bytes, change: Callable[[Record | None], bytes | None]) -> None:
        """Replace a key's data by a function of its record, atomically against `update`, `put_if` and `delete_if`.

        Args:
            key: the key.
            change: returns the new data for the record or `None`; returns `None` to write nothing. May be called
                several times.
        """
        writes.update(self._context, self._name, key, change)

    def delete(self, key: bytes) -> None:
        """Delete a key. A key that does not exist is no error; a key that no layer holds writes nothing."""
        writes.delete_many(self._context, self._name, (key,))

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Delete up to 1000 keys and acknowledge them together. Costs two or three requests more than `put_many`.

        Raises:
            InvalidInput: more were given; nothing was deleted.
            OutcomeUnknown: as for `put_many`.
        """
        writes.delete_many(self._context, self._name, keys)

    def delete_if(self, key: bytes, expected: Record | Exists) -> None:
        """Delete a key if it has the expected state; errors as for `put_if`."""
        writes.delete_if(self._context, self._name, key, expected)

    # --- commits and HEAD

    def commit(self, message: str, *, metadata: Mapping[str, str] | None = None, allow_empty: bool = False,
               budget: Budget | None = None) -> CommitReport:
        """Commit all acknowledged changes as the new HEAD; the report is empty if there were no changes.

        Raises:
            TooManyTries: others changed the branch during every try; nothing is lost, commit again.
            BudgetSpent: the budget ran out; HEAD is unchanged.
        """
        return head.commit(self._context, self._name, message, metadata, allow_empty=allow_empty, budget=budget)

    def merge(self, source: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
              strategy: MergeStrategy = "fail") -> CommitReport:
        """Merge the changes of another branch's HEAD, or of a commit, since the common ancestor.

        Raises:
            DirtyBranch: this branch has uncommitted changes; those of the source are ignored.
            MergeConflict: both sides changed a key in different ways, and the strategy is `"fail"`.
            CommitNotFound: there is no such commit.
            MetaRangeNotFound: a commit was unreachable for the grace period, and its records were collected.
            BeingCollected: a collection deletes them now.
        """
        return head.merge(self._context, self._name, source, message or f"merge {source} into {self._name}", metadata,
                          strategy)

    def revert(self, commit: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
               strategy: MergeStrategy = "fail") -> CommitReport:
        """Undo the changes of a commit against its first parent, in a new commit.

        Raises:
            DirtyBranch, MergeConflict, CommitNotFound, MetaRangeNotFound, BeingCollected: as for `merge`.
        """
        return head.replay(self._context, self._name, commit, message or f"revert {commit}", metadata, strategy,
                           backwards=True)

    def cherry_pick(self, commit: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
                    strategy: MergeStrategy = "fail") -> CommitReport:
        """Apply the changes of a commit against its first parent, in a new commit.

        Raises:
            DirtyBranch, MergeConflict, CommitNotFound, MetaRangeNotFound, BeingCollected: as for `merge`.
        """
        return head.replay(self._context, self._name, commit, message or f"cherry-pick {commit}", metadata, strategy,
                           backwards=False)

    def commit_metarange(self, metarange_id: MetaRangeId, message: str, *,
                         metadata: Mapping[str, str] | None = None) -> CommitReport:
        """Commit a given metarange as the new HEAD: an import, or the result of a job.

        Raises:
            DirtyBranch: the branch has uncommitted changes.
            MetaRangeNotFound: there is no such metarange.
            RangeNotFound: one of its ranges is missing: it was collected, or was not copied.
        """
        return head.commit_metarange(self._context, self._name, metarange_id, message, metadata)

    def hard_reset(self, ref: str, *, discard: bool = False) -> CommitReport:
        """Move HEAD to a commit, or to the HEAD of a branch.

        Args:
            ref: a commit id or a branch's name.
            discard: drop uncommitted changes; without it there must be none.

        Raises:
            DirtyBranch: the branch has uncommitted changes, and `discard` is not set.
            CommitNotFound: there is no such commit.
            MetaRangeNotFound: the commit was unreachable for the grace period, and its records were collected.
        """
        return head.hard_reset(self._context, self._name, ref, discard=discard)

    # --- resets

    def reset(self) -> ResetReport:
        """Drop all uncommitted changes, in one step."""
        return head.reset(self._context, self._name)

    def reset_key(self, key: bytes) -> ResetReport:
        """Restore one key to its state in HEAD."""
        return writes.reset_key(self._context, self._name, key)

    def reset_prefix(self, prefix: bytes) -> ResetReport:
        """Restore all keys with a prefix to their state in HEAD, in one step; `b""` is `reset`."""
        return head.reset_prefix(self._context, self._name, prefix)

    # --- about the branch

    def record(self) -> BranchRecord:
        """Return the branch's present record: its HEAD and layers. One request."""
        return self._context.branches.read(self._name)

    def status(self) -> BranchStatus:
        """Return the status of the branch. One or two requests."""
        return self._context.status_of(self._name, self.record())

    def log(self) -> Iterator[tuple[CommitId, Commit]]:
        """Yield HEAD and its ancestors, children before parents."""
        history = self._context.commits.history(self.record().commit_id)
        return ((commit_id, copied(commit)) for commit_id, commit in history)

    def __repr__(self) -> str:
        return f"Branch({self._name!r} of {self._context.repository!r})"
