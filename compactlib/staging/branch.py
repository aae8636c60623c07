# SPDX-License-Identifier: Apache-2.0
"""`Branch`: everything that a reader or writer does with one branch."""

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
    """One branch of a `Repository`. Holds nothing: threads may share it, and it need not exist yet, or any more.

    Every method may raise `BranchNotFound`, what the key-value store and the object store raise, `CorruptData` for
    what is damaged and `Unsupported` for what a newer release wrote. An error while reading is never an answer.

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
        """The record of a key: committed, compacted or staged, whichever is newest.

        Costs a request for the branch, one for the staging token, one for all sealed ones, at most one range, and one
        for the branch again.

        Raises:
            RecordNotFound: there is none.
            TooManyTries: the branch changed under every try.
        """
        check_key(key)
        record = consistently(self._context, self._name, lambda view: view.find_many((key,))[key],
                              holds=lambda place: place.in_staging_token).record
        if record is None:
            raise RecordNotFound(ref=self._name, key=key)
        return record

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """The records of those keys that have one, each as it is at some moment of the call.

        Costs one request for the staging token, one for what is not there in every ten sealed tokens, the ranges, and
        two for the branch; more where the store reads fewer keys in one request.

        Raises:
            TooManyKeys: more than 1000 were given.
        """
        wanted = checked_keys(keys)
        found = consistently(self._context, self._name, lambda view: view.find_many(wanted))
        return {key: place.record for key, place in found.items() if place.record is not None}

    def head(self) -> CommittedView:
        """HEAD as it is now: its records, without anything uncommitted. It does not follow the branch."""
        return CommittedView.of(self._context, self._name)

    def list(self, *, prefix: bytes = b"", delimiter: bytes = b"", after: bytes | None = None, limit: int = 1000,
             ) -> ListPage:
        """One page of the branch's keys, in order.

        Args:
            prefix: only keys that begin so.
            delimiter: fold keys that go on after it, behind the prefix, to one common prefix.
            after: begin behind this key, or behind all keys below this common prefix: `next_after` of the page before.
            limit: how many entries, 1 to 10,000.

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
        """All keys in order, page after page: each key as it is at some moment of the call for its page."""
        after: bytes | None = None
        while True:
            page = self.list(prefix=prefix, delimiter=delimiter, after=after, limit=page_limit)
            yield from page.entries
            after = page.next_after
            if after is None:
                return

    def diff(self, *, prefix: bytes = b"", after: bytes | None = None, limit: int = 1000) -> DiffPage:
        """One page of what is uncommitted: each key of which the branch gives another answer than HEAD.

        Args:
            prefix: only keys that begin so.
            after: begin behind this key.
            limit: how many differences, 1 to 10,000.
        """
        request = ListRequest(prefix=prefix, after=after, limit=limit, max_scanned=self._context.options.max_scanned)
        return consistently(self._context, self._name, lambda view: view.diff_page(request))

    def differences(self, *, prefix: bytes = b"", page_limit: int = 1000) -> Iterator[Difference]:
        """All that is uncommitted, page after page."""
        after: bytes | None = None
        while True:
            page = self.diff(prefix=prefix, after=after, limit=page_limit)
            yield from page.differences
            after = page.next_after
            if after is None:
                return

    def is_dirty(self) -> bool:
        """Whether anything is uncommitted. Stops at the first difference."""
        return consistently(self._context, self._name, lambda view: view.first_uncommitted() is not None)

    # --- writes

    def put(self, key: bytes, data: bytes) -> None:
        """Write a record. Costs a request for the branch, one for the record, one for the branch again.

        Raises:
            TooManyTries: the staging token was replaced under every try; the value may be visible (G4).
            OutcomeUnknown: the store gave no answer; the value may be visible, or become so later.
        """
        check_key(key)
        writes.put_many(self._context, self._name, {key: data})

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Write up to 1000 records and acknowledge them together. They do not become visible in one step.

        Costs three requests; more where the store takes fewer keys in one.

        Raises:
            TooManyKeys: more were given; nothing was written.
            OutcomeUnknown: the store failed; some may be written. Make the same call again.
        """
        writes.put_many(self._context, self._name, items)

    def put_if(self, key: bytes, data: bytes, expected: Record | Exists | None) -> None:
        """Write a record if the key is in this state: a record (by identity), `EXISTS`, or `None` for "no record".

        Raises:
            PreconditionFailed: it is not; nothing was written.
            OutcomeUnknown: the store gave no answer, and what happened cannot be seen any more.
        """
        writes.put_if(self._context, self._name, key, data, expected)

    def update(self, key: bytes, change: Callable[[Record | None], bytes | None]) -> None:
        """Make a key's new data of its record, in one step against others who do so, `put_if` or `delete_if`.

        Args:
            key: which key.
            change: given the record, or `None`, gives the new data, or `None` to leave it. May be called several times.
        """
        writes.update(self._context, self._name, key, change)

    def delete(self, key: bytes) -> None:
        """Delete a key; one that does not exist is no error, and writes nothing if nothing is known of it."""
        writes.delete_many(self._context, self._name, (key,))

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Delete up to 1000 keys and acknowledge them together. Costs two or three requests more than `put_many`.

        Raises:
            TooManyKeys: more were given; nothing was deleted.
            OutcomeUnknown: as `put_many`.
        """
        writes.delete_many(self._context, self._name, keys)

    def delete_if(self, key: bytes, expected: Record | Exists) -> None:
        """Delete a key if it is in this state; as `put_if`."""
        writes.delete_if(self._context, self._name, key, expected)

    # --- commits and HEAD

    def commit(self, message: str, *, metadata: Mapping[str, str] | None = None, allow_empty: bool = False,
               budget: Budget | None = None) -> CommitReport:
        """Make everything acknowledged so far the new HEAD; the report is empty if there was nothing to commit.

        Raises:
            TooManyTries: others changed the branch under every try; nothing is lost, commit again.
            BudgetSpent: the budget ran out; HEAD stays.
        """
        return head.commit(self._context, self._name, message, metadata, allow_empty=allow_empty, budget=budget)

    def merge(self, source: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
              strategy: MergeStrategy = "fail") -> CommitReport:
        """Bring what the HEAD of another branch, or a commit, has since the two parted.

        Raises:
            DirtyBranch: this branch has uncommitted changes. Those of the source do not matter.
            MergeConflict: both sides changed a key, each in its own way, and the strategy is `"fail"`.
            CommitNotFound: there is no such commit.
            MetaRangeNotFound: no branch has reached a commit that is needed for long, and its records were collected.
            BeingCollected: they are being collected at this moment.
        """
        return head.merge(self._context, self._name, source, message or f"merge {source} into {self._name}", metadata,
                          strategy)

    def revert(self, commit: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
               strategy: MergeStrategy = "fail") -> CommitReport:
        """Undo what a commit changed against its first parent, in a new commit.

        Raises:
            DirtyBranch, MergeConflict, CommitNotFound, MetaRangeNotFound, BeingCollected: as for `merge`.
        """
        return head.replay(self._context, self._name, commit, message or f"revert {commit}", metadata, strategy,
                           backwards=True)

    def cherry_pick(self, commit: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
                    strategy: MergeStrategy = "fail") -> CommitReport:
        """Do again what a commit changed against its first parent, in a new commit.

        Raises:
            DirtyBranch, MergeConflict, CommitNotFound, MetaRangeNotFound, BeingCollected: as for `merge`.
        """
        return head.replay(self._context, self._name, commit, message or f"cherry-pick {commit}", metadata, strategy,
                           backwards=False)

    def commit_metarange(self, metarange_id: MetaRangeId, message: str, *,
                         metadata: Mapping[str, str] | None = None) -> CommitReport:
        """Make a given metarange the new HEAD, in a new commit: an import, or the result of a job.

        Raises:
            DirtyBranch: the branch has uncommitted changes.
            MetaRangeNotFound: there is no such metarange.
            RangeNotFound: one of its ranges is gone: what it was made of had been collected, or was not copied.
        """
        return head.commit_metarange(self._context, self._name, metarange_id, message, metadata)

    def hard_reset(self, ref: str, *, discard: bool = False) -> CommitReport:
        """Make a commit, or the HEAD of a branch, the HEAD of this branch.

        Args:
            ref: where to.
            discard: throw away what is uncommitted; otherwise there must be nothing.

        Raises:
            DirtyBranch: the branch has uncommitted changes, and they are not to be discarded.
            CommitNotFound: there is no such commit.
            MetaRangeNotFound: no branch has reached the commit for long, and its records were collected.
        """
        return head.hard_reset(self._context, self._name, ref, discard=discard)

    # --- resets

    def reset(self) -> ResetReport:
        """Throw away everything uncommitted, in one step."""
        return head.reset(self._context, self._name)

    def reset_key(self, key: bytes) -> ResetReport:
        """Make one key what it is in HEAD."""
        return writes.reset_key(self._context, self._name, key)

    def reset_prefix(self, prefix: bytes) -> ResetReport:
        """Make all keys that begin so what they are in HEAD, in one step; `b""` is `reset`."""
        return head.reset_prefix(self._context, self._name, prefix)

    # --- about the branch

    def record(self) -> BranchRecord:
        """What the branch is made of, as it is now. One request."""
        return self._context.branches.read(self._name)

    def status(self) -> BranchStatus:
        """The branch in one line. One or two requests."""
        return self._context.status_of(self._name, self.record())

    def log(self) -> Iterator[tuple[CommitId, Commit]]:
        """HEAD and its ancestors, children before parents."""
        history = self._context.commits.history(self.record().commit_id)
        return ((commit_id, copied(commit)) for commit_id, commit in history)

    def __repr__(self) -> str:
        return f"Branch({self._name!r} of {self._context.repository!r})"
