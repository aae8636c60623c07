# SPDX-License-Identifier: Apache-2.0
"""`Branch`: reads, writes, commits, moves of HEAD and resets of one branch.

**A write** to the staging token is acknowledged only if the token is still the staging token afterwards. A commit or a
compaction seals the token before it reads it. So a write whose token is still in place was made before any seal, and is
in the result of the next seal. Any other write may have been too late, and is repeated in the new token. A delete
writes a tombstone, whether or not a layer holds the key.

**A conditional write** is one `transact`: if the branch record and the cell in the staging token are unchanged, it
writes the entry. So of several writers one wins. An entry has the id of its write, so that a call whose `transact` got
no answer recognizes its own entry. A reset of a key is a conditional write of its state in HEAD.

**A commit** seals the staging token, builds a metarange, and moves HEAD by compare-and-set.

1. Seal the staging token, unless it is empty. Every acknowledged write is now in a sealed token, or in the metarange of
   a compaction.
2. Apply the sealed tokens to the base: the compacted metarange if there is one, else that of HEAD. Store the commit.
3. Compare-and-set the branch: HEAD is the commit; the record drops the applied tokens and the compacted metarange.

If the branch changed before 3: tokens that were only sealed in front stay sealed, and 3 is retried. After a compaction
or another commit, 2 is repeated. Whether a commit has changes is decided against the content of HEAD, not against the
base or by the sealed tokens. A commit without changes drops the tokens that it sealed, so that they do not pile up. A
crash at any step leaves at most a sealed token, a metarange and a commit without a reference.

**Other moves of HEAD** need a branch without uncommitted changes: a tombstone that hides nothing today would hide a key
of the new HEAD. Changes that a compaction has moved into a metarange count as uncommitted. So a move takes two
compare-and-sets: the branch is clean, so seal (later writes stay above the new HEAD); the sealed and compacted layers
are still clean, so move HEAD and drop these layers.

**Resets.** A hard reset with `discard`, and a reset of the branch, is one compare-and-set that drops every layer. A
reset of a prefix has the steps of a compaction: its result is the branch's content with the prefix as in HEAD.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias, TypeVar

import attrs

from compactlib._arguments import own_bytes
from compactlib.budget import Budget
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import OutcomeUnknown, PredicateFailed, SlowDown
from compactlib.kv.cell import Found, Swap, resolve_unknown
from compactlib.kv.store import Exists
from compactlib.staging.commits import Commit, copied
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import (
    BeingCollected,
    BranchNotFound,
    CommitNotFound,
    DirtyBranch,
    MetaRangeNotFound,
    PreconditionFailed,
    RecordNotFound,
)
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import CommitReport, DiffPage, Listed, ListPage, ResetReport
from compactlib.staging.tokens import (
    WRITE_ID_BYTES,
    MergedTokens,
    Staged,
    decode_staged,
    encode_staged,
    place_of,
    set_staged,
)
from compactlib.staging.values import (
    MAX_PART_BYTES,
    Applied,
    Change,
    Changes,
    CommitId,
    Difference,
    MergeStrategy,
    MetaRangeId,
    Record,
    are_same,
    branch_key,
    check_key,
    checked_keys,
    token_partition,
)
from compactlib.staging.view import BranchView, CommittedView, ListRequest, consistently, upper_bound

PageT = TypeVar("PageT", ListPage, DiffPage)

Decide: TypeAlias = Callable[[Record | None, BranchRecord], Staged | None]
"""Returns the entry to write for the newest record of a key; `None`: none. May be called several times."""

NextHead: TypeAlias = Callable[[CommitId | None], tuple[CommitId | None, Applied | None]]
"""Returns the target commit for the present HEAD, and the apply behind it. Called again after each conflict."""


@attrs.frozen
class _Built:
    """The result of step 2: the record that it was built of, the content, and the report if step 3 succeeds."""

    source: BranchRecord
    metarange_id: MetaRangeId
    report: CommitReport


def _record_of(data: bytes) -> Record:
    """Return the record of data; copies a buffer."""
    held = own_bytes(data)
    if len(held) > MAX_PART_BYTES:
        raise InvalidInput(f"a record of {len(held)} bytes was given; the limit is {MAX_PART_BYTES}; split it, or "
                           f"store the data elsewhere and a reference to it here")
    return Record.of(held)


def _pages(read: Callable[[bytes | None], PageT]) -> Iterator[PageT]:
    """Yield all pages; `read` returns the page after a key."""
    page = read(None)
    yield page
    while page.next_after is not None:
        page = read(page.next_after)
        yield page


def _report(target: CommitId | None, counts: Mapping[str, int], applied: Applied | None, rebuilds: int = 0,
            ) -> CommitReport:
    return CommitReport(commit_id=target, rebuilds=rebuilds, added=counts["added"], changed=counts["changed"],
                        removed=counts["removed"], ranges_written=0 if applied is None else applied.ranges_written,
                        ranges_reused=0 if applied is None else applied.ranges_reused)


class Branch:
    """One branch of a `Repository`. It has no state: threads may share it, and the branch need not exist.

    Every method may raise `BranchNotFound`, the errors of the key-value store and the object store, `CorruptData` for
    damaged bytes and `Unsupported` for bytes of a newer release. A read that fails raises and returns nothing.
    """

    def __init__(self, context: StagingContext, name: str) -> None:
        branch_key(name)
        self._context = context
        self._branches = context.branches
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
            Busy: the branch changed under every try.
        """
        check_key(key)
        record = consistently(self._context, self._name, lambda view: view.find_many((key,))[key],
                              holds=lambda state: state.is_in_staging_token).record
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
        return {key: state.record for key, state in found.items() if state.record is not None}

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
        self._branches.count_tombstones(self._name, record, listed=page.tombstones)
        return page

    def entries(self, *, prefix: bytes = b"", delimiter: bytes = b"", page_limit: int = 1000) -> Iterator[Listed]:
        """Yield all keys in order, page by page, each as of some moment of the call for its page."""
        for page in _pages(lambda after: self.list(prefix=prefix, delimiter=delimiter, after=after, limit=page_limit)):
            yield from page.entries

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
        for page in _pages(lambda after: self.diff(prefix=prefix, after=after, limit=page_limit)):
            yield from page.differences

    def is_dirty(self) -> bool:
        """Return whether the branch has uncommitted changes. Stops at the first."""
        return consistently(self._context, self._name, lambda view: view.first_uncommitted() is not None)

    # --- writes

    def put(self, key: bytes, data: bytes) -> None:
        """Write a record. Costs three requests: the branch, the record, and the branch again.

        Raises:
            Busy: the staging token was replaced during every try; the value may be visible (G4).
            OutcomeUnknown: the store did not answer; the value may be visible now or later.
        """
        self.put_many({key: data})

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Write up to 1000 records and acknowledge them together. They do not become visible in one step.

        Costs three requests; more for more than 4 MiB, and where the store writes fewer keys in one request.

        Raises:
            InvalidInput: more were given; nothing was written.
            OutcomeUnknown: the store failed; some may be written. Repeat the call.
        """
        checked_keys(items)
        self._write_until_held("put", {key: Staged(_record_of(data)) for key, data in items.items()})

    def put_if(self, key: bytes, data: bytes, expected: Record | Exists | None) -> None:
        """Write a record if the key has the expected state: a record (by identity), `EXISTS`, or `None` (no record).

        Raises:
            PreconditionFailed: the key has another state; nothing was written.
            OutcomeUnknown: the store did not answer, and the outcome can no longer be read.
        """
        staged = Staged(_record_of(data))
        self._write_conditionally(key, self._expecting(key, expected, staged), "put_if")

    def update(self, key: bytes, change: Callable[[Record | None], bytes | None]) -> None:
        """Replace a key's data by a function of its record, atomically against `update`, `put_if` and `delete_if`.

        Args:
            key: the key.
            change: returns the new data for the record or `None`; returns `None` to write nothing. May be called
                several times.
        """
        def decide(record: Record | None, _: BranchRecord) -> Staged | None:
            data = change(record)
            return None if data is None else Staged(_record_of(data))

        self._write_conditionally(key, decide, "update")

    def delete(self, key: bytes) -> None:
        """Delete a key; one that does not exist is no error. Costs and errors as for `put`."""
        self.delete_many((key,))

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Delete up to 1000 keys and acknowledge them together. Costs and errors as for `put_many`."""
        entries = dict.fromkeys(checked_keys(keys), Staged(None))
        record = self._write_until_held("delete", entries)
        self._branches.count_tombstones(self._name, record, written=len(entries))

    def delete_if(self, key: bytes, expected: Record | Exists) -> None:
        """Delete a key if it has the expected state; errors as for `put_if`."""
        record = self._write_conditionally(key, self._expecting(key, expected, Staged(None)), "delete_if")
        self._branches.count_tombstones(self._name, record, written=1)

    # --- commit

    def commit(self, message: str, *, metadata: Mapping[str, str] | None = None, allow_empty: bool = False,
               budget: Budget | None = None) -> CommitReport:
        """Commit all acknowledged changes as the new HEAD; the report is empty if there were no changes.

        Raises:
            Busy: others changed the branch during every try; nothing is lost, commit again.
            BudgetSpent: the budget ran out; HEAD is unchanged.
        """
        context, commits = self._context, self._context.commits
        before, sealed = self._branches.update(self._name, self._branches.sealed, operation="commit", idempotent=True)
        if sealed is before and sealed.is_bare and not allow_empty:
            return CommitReport(why="nothing was written since HEAD", commit_id=sealed.commit_id)
        builds: list[_Built] = []

        def build(record: BranchRecord) -> _Built:
            head = commits.metarange_of(record.commit_id)
            base, target = record.base(head), None
            applied = self._apply(base, MergedTokens(context.store, record.sealed_tokens), budget)
            counts = ({"added": applied.added, "changed": applied.changed, "removed": applied.removed} if base == head
                      else self._counts(head, applied.metarange_id))
            has_changes = any(counts.values())
            if has_changes or allow_empty:
                target = commits.add(applied.metarange_id if has_changes or head is None else head,
                                     [record.commit_id], message, metadata)
            return _Built(record, applied.metarange_id, _report(target, counts, applied, rebuilds=len(builds)))

        def switch(record: BranchRecord) -> BranchRecord | None:
            if not builds or not record.extends(builds[-1].source) or not self._is_kept(builds[-1].metarange_id):
                builds.append(build(record))
            source, target = builds[-1].source, builds[-1].report.commit_id
            if target is None and record.is_bare:
                return None
            newer = len(record.sealed_tokens) - len(source.sealed_tokens)  # sealed in front, meanwhile
            return attrs.evolve(record.compacted(None, newer=newer), commit_id=target or record.commit_id)

        head = self._branches.update(self._name, switch, operation="commit")[1].commit_id
        if head == sealed.commit_id:
            return CommitReport(why="the content is that of HEAD", commit_id=head)
        for built in builds:
            if head is not None and built.report.commit_id == head:
                return built.report
        if sealed.commit_id is not None and not commits.is_ancestor(sealed.commit_id, head):
            return CommitReport(why="another caller reset HEAD, which dropped the uncommitted changes", commit_id=head)
        return CommitReport(why="another commit holds all changes, unless a reset dropped them", commit_id=head)

    def _is_kept(self, metarange_id: MetaRangeId) -> bool:
        """Return whether the files survived until the record was re-read; protects them from collections."""
        try:
            self._context.committed.claim(metarange_id)
        except (BeingCollected, MetaRangeNotFound):
            return False
        return True

    # --- other moves

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
        theirs, commits = self._context.resolve(source), self._context.commits

        def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
            if theirs is None or commits.is_ancestor(theirs, head):
                return head, None
            base = self._merge_base([theirs], [] if head is None else [head])
            applied = self._merged(base, commits.metarange_of(theirs), head, strategy)
            return commits.add(applied.metarange_id, [head, theirs], message or f"merge {source} into {self._name}",
                               metadata), applied

        return self._move(next_head, operation="merge")

    def revert(self, commit: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
               strategy: MergeStrategy = "fail") -> CommitReport:
        """Undo the changes of a commit against its first parent, in a new commit; errors as for `merge`."""
        return self._replay(commit, message or f"revert {commit}", metadata, strategy, operation="revert")

    def cherry_pick(self, commit: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
                    strategy: MergeStrategy = "fail") -> CommitReport:
        """Apply the changes of a commit against its first parent, in a new commit; errors as for `merge`."""
        return self._replay(commit, message or f"cherry-pick {commit}", metadata, strategy, operation="cherry_pick")

    def _replay(self, ref: str, message: str, metadata: Mapping[str, str] | None, strategy: MergeStrategy, *,
                operation: Literal["revert", "cherry_pick"]) -> CommitReport:
        """Apply the changes of a commit against its first parent to HEAD, or take them back."""
        commits, commit_id = self._context.commits, self._context.resolve(ref)
        if commit_id is None:
            raise CommitNotFound(commit_id=ref)
        commit = commits.get(commit_id)
        sides = commits.metarange_of(commit.parents[0] if commit.parents else None), commit.metarange_id
        base, source = sides if operation == "cherry_pick" else sides[::-1]

        def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
            applied = self._merged(base, source, head, strategy)
            if not applied.changes:
                return head, None
            return commits.add(applied.metarange_id, [head], message, metadata), applied

        return self._move(next_head, operation=operation)

    def commit_metarange(self, metarange_id: MetaRangeId, message: str, *,
                         metadata: Mapping[str, str] | None = None) -> CommitReport:
        """Commit a given metarange as the new HEAD: an import, or the result of a job.

        Raises:
            DirtyBranch: the branch has uncommitted changes.
            MetaRangeNotFound: there is no such metarange.
            RangeNotFound: one of its ranges is missing: it was collected, or was not copied.
        """
        committed = self._context.committed

        def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
            present = self._context.commits.metarange_of(head)
            if head is not None and present == metarange_id:
                return head, None
            committed.claim(metarange_id)  # it must exist before a commit names it, and stay
            # Its ranges too: drop the cached ones, so that each is read from the store.
            known, ranges = committed.read_metarange(present).ids, committed.read_metarange(metarange_id).ids
            for range_id in ranges - known:
                committed.forget(range_id)
            applied = Applied(metarange_id=metarange_id, ranges_reused=len(ranges & known),
                              ranges_written=len(ranges - known))
            return self._context.commits.add(metarange_id, [head], message, metadata), applied

        return self._move(next_head, operation="commit_metarange")

    def hard_reset(self, ref: str, *, discard: bool = False) -> CommitReport:
        """Move HEAD to a commit, or to the HEAD of a branch; `discard` drops uncommitted changes. Errors: see `merge`.
        """
        return self._move(lambda _: (self._context.resolve_present(ref), None), operation="hard_reset", discard=discard)

    def _move(self, next_head: NextHead, *, operation: str, discard: bool = False) -> CommitReport:
        """Move the HEAD of a branch that has no uncommitted changes, or drop them."""
        context = self._context
        made: dict[tuple[CommitId | None, CommitId | None], CommitReport] = {}  # by the old and the new HEAD

        def prepare(record: BranchRecord) -> BranchRecord | None:
            self._require_clean(record, include_staging=True)
            if record.sealed_tokens and self._branches.is_empty(record.staging_token):
                return None  # an earlier move sealed it and failed
            return record.sealed_with(self._branches.new_token())

        def switch(record: BranchRecord) -> BranchRecord | None:
            if not discard:
                self._require_clean(record, include_staging=False)
            head = record.commit_id
            target, applied = next_head(head)
            if target == head and (self._is_clear(record) if discard else record.is_bare):
                return None
            # Reported before the write: a failure afterwards would hide a completed move.
            counts = self._counts(context.commits.metarange_of(head), context.commits.metarange_of(target))
            made[head, target] = _report(target, counts, applied)
            return record.emptied(self._branches.new_token() if discard else record.staging_token, target)

        if not discard:
            self._branches.update(self._name, prepare, operation=operation, idempotent=True)
        before, after = self._branches.update(self._name, switch, operation=operation)
        old, new = before.commit_id, after.commit_id
        # A move that drops uncommitted changes is not empty, also if HEAD is unchanged.
        if after is before or (new == old and (new is None or not discard)):
            return CommitReport(why="HEAD is unchanged", commit_id=new)
        if new is None:
            return CommitReport(why="the branch has no commit now, as its source has none", commit_id=None)
        return made[old, new]

    # --- resets

    def reset(self) -> ResetReport:
        """Drop all uncommitted changes, in one step."""
        def change(record: BranchRecord) -> BranchRecord | None:
            return None if self._is_clear(record) else record.emptied(self._branches.new_token(), record.commit_id)

        before, after = self._branches.update(self._name, change, operation="reset")
        if after is before:
            return ResetReport(why="nothing was uncommitted")
        return ResetReport(tokens_dropped=len(before.tokens))

    def reset_prefix(self, prefix: bytes) -> ResetReport:
        """Restore all keys with a prefix to their state in HEAD, in one step; `b""` is `reset`.

        A write during the call may stay. Costs a rewrite of what is staged, like a compaction.
        """
        if not prefix:
            return self.reset()
        context, committed = self._context, self._context.committed
        is_needed, counts = False, Counter[str]()

        def seal(record: BranchRecord) -> BranchRecord | None:
            nonlocal is_needed
            is_needed = BranchView.of(context, record).first_uncommitted(prefix=prefix) is not None
            return self._branches.sealed(record) if is_needed else None

        def switch(record: BranchRecord) -> BranchRecord | None:
            counts.clear()
            head = context.commits.metarange_of(record.commit_id)
            content = self._apply(record.base(head), MergedTokens(context.store, record.sealed_tokens)).metarange_id

            def restored() -> Iterator[tuple[bytes, Change]]:
                for difference in committed.diff(content, head, prefix, upper_bound(prefix)):
                    counts["removed" if difference.right is None else "restored"] += 1
                    yield difference.key, difference.right

            result = self._apply(content, restored()).metarange_id
            if not counts:
                return None  # another caller has dropped the changes
            return record.compacted(committed.unless_head(result, head))

        self._branches.update(self._name, seal, operation="reset_prefix", idempotent=True)
        if is_needed:
            self._branches.update(self._name, switch, operation="reset_prefix")
        return ResetReport(why="" if counts else "nothing was uncommitted under the prefix",
                           records_restored=counts["restored"], tombstones=counts["removed"])

    def reset_key(self, key: bytes) -> ResetReport:
        """Restore one key to its state in HEAD."""
        context, report = self._context, ResetReport()

        def decide(record: Record | None, branch: BranchRecord) -> Staged | None:
            nonlocal report
            before = context.committed.get(context.commits.metarange_of(branch.commit_id), key)
            if record == before:
                report = ResetReport(why="the key is as in HEAD")
                return None
            report = ResetReport(records_restored=int(before is not None), tombstones=int(before is None))
            return Staged(before)

        found = self._write_conditionally(key, decide, "reset_key")
        self._branches.count_tombstones(self._name, found, written=report.tombstones)
        return report

    # --- about the branch

    def record(self) -> BranchRecord:
        """Return the branch's present record: its HEAD and layers. One request."""
        return self._branches.read(self._name)

    def log(self) -> Iterator[tuple[CommitId, Commit]]:
        """Yield HEAD and its ancestors, children before parents."""
        history = self._context.commits.history(self.record().commit_id)
        return ((commit_id, copied(commit)) for commit_id, commit in history)

    # --- parts of several of them

    def _is_clear(self, record: BranchRecord) -> bool:
        """Return whether no layer above HEAD holds entries; valid if the record is unchanged afterwards."""
        return record.is_bare and self._branches.is_empty(record.staging_token)

    def _require_clean(self, record: BranchRecord, *, include_staging: bool) -> None:
        view = BranchView.of(self._context, record)
        difference = view.first_uncommitted(include_staging=include_staging)
        if difference is not None:
            raise DirtyBranch(branch=self._name, key=difference.key)

    def _apply(self, base: MetaRangeId | None, changes: Changes, budget: Budget | None = None) -> Applied:
        """Apply entries of sealed tokens, and read the result back: then the tokens may be dropped."""
        applied = self._context.committed.apply(base, changes, budget=budget)
        self._context.committed.check(applied.metarange_id, base)
        return applied

    def _merge_base(self, ones: Collection[CommitId], others: Collection[CommitId]) -> MetaRangeId | None:
        """Return the content of the newest common ancestor. Branches that merged each other have several: then the
        merge of these over their own merge base.
        """
        context, merged = self._context, list[CommitId]()
        base: MetaRangeId | None = None
        for commit_id in context.commits.merge_bases(ones, others):
            found = context.commits.metarange_of(commit_id)
            base = (context.committed.merged_ancestors(self._merge_base(merged, [commit_id]), base, found) if merged
                    else found)
            merged.append(commit_id)
        return base

    def _merged(self, base: MetaRangeId | None, source: MetaRangeId | None, head: CommitId | None,
                strategy: MergeStrategy) -> Applied:
        """Merge the changes from the base to the source into HEAD. The commits may be unreachable."""
        committed, present = self._context.committed, self._context.commits.metarange_of(head)
        for metarange_id in sorted(filter(None, {base, source} - {present})):
            committed.claim(metarange_id)  # also if it is cached
        return committed.merge(base, source, present, strategy)

    def _counts(self, before: MetaRangeId | None, after: MetaRangeId | None) -> Counter[str]:
        return Counter(difference.kind for difference in self._context.committed.diff(before, after))

    # --- writes to tokens

    def _write_until_held(self, operation: str, entries: Mapping[bytes, Staged]) -> BranchRecord:
        """Write the entries until their token is the staging token afterwards. Return the branch's record then."""
        context, was_taken = self._context, False
        refused: CompactlibError | None = None
        try:
            for _ in context.cells.tries():
                record, refused = self.record(), None
                if not entries:
                    return record
                try:
                    set_staged(context.store, record.staging_token, entries)
                except (SlowDown, OutcomeUnknown) as error:
                    if not isinstance(error, SlowDown) and not isinstance(error.__cause__, SlowDown):
                        raise
                    was_taken = was_taken or isinstance(error, OutcomeUnknown)  # a part
                    refused = error
                    continue
                was_taken = True
                now = self._seen_after_write(operation, record)
                if now.staging_token == record.staging_token:
                    return now
            if refused is not None:
                raise refused
        except (OutcomeUnknown, BranchNotFound):
            raise
        except CompactlibError as error:
            if was_taken:
                raise self._unknown(operation, f"a token took the write and was replaced, and the next try raised "
                                               f"{error}") from error
            raise
        raise self._branches.overtaken(operation, self._name)

    def _seen_after_write(self, operation: str, before: BranchRecord) -> BranchRecord:
        """Return the present record after a write to its token; re-read until the store answers."""
        def read() -> BranchRecord | None:
            try:
                return self.record()
            except BranchNotFound:
                return None

        now = resolve_unknown(read, self._unknown(
            operation, "a token took the write, and whether the branch still names the token cannot be read"),
            clock=self._context.clock, rng=self._context.rng)
        if now is None or before.staging_token not in now.tokens:
            # The cleanup may have emptied the token before this write.
            with contextlib.suppress(CompactlibError):
                self._branches.mark_late(self._name, before.staging_token)
        if now is None:
            raise BranchNotFound(branch=self._name)
        return now

    def _unknown(self, operation: str, detail: str) -> OutcomeUnknown:
        return OutcomeUnknown(operation=operation, path=f"branch {self._name!r}", detail=detail)

    def _expecting(self, key: bytes, expected: Record | Exists | None, staged: Staged) -> Decide:
        def decide(record: Record | None, _: BranchRecord) -> Staged:
            if not (record is not None if isinstance(expected, Exists) else are_same(record, expected)):
                raise PreconditionFailed(branch=self._name, key=key)
            return staged

        return decide

    def _write_conditionally(self, key: bytes, decide: Decide, operation: str) -> BranchRecord:
        """Write the entry that `decide` returns, in one step. Return the branch's record before."""
        check_key(key)
        for _ in self._context.cells.tries():
            with contextlib.suppress(PredicateFailed):  # the branch has another staging token
                return self._try_conditionally(key, decide, operation)
        raise self._branches.overtaken(operation, self._name)

    def _try_conditionally(self, key: bytes, decide: Decide, operation: str) -> BranchRecord:
        context = self._context
        token, write_id = self.record().staging_token, context.rng.randbytes(WRITE_ID_BYTES)
        home, cell = self._branches.address(self._name), (token_partition(token), key)
        place = place_of(token, key)

        def swapped(record: BranchRecord, cells: Found) -> Swap[BranchRecord]:
            if record.staging_token != token:
                raise PredicateFailed(partition=token_partition(record.staging_token), key=key)
            if cell in cells:
                found = decode_staged(cells[cell].value, place).record
            else:
                found = BranchView.of(context, record).find_many((key,), skip_staging_token=True)[key].record
            staged = decide(found, record)
            return Swap(record, {} if staged is None else {
                cell: encode_staged(attrs.evolve(staged, write_id=write_id))})

        def judge(before: Found, _: Swap[BranchRecord], cells: Found) -> bool | None:
            now = cells.get(cell)
            if now is not None and decode_staged(now.value, place).write_id == write_id:
                return True
            if home not in cells or now != before.get(cell):
                return None
            # No one deletes an entry of a token that the record names. If it does not name the token, the cleanup may
            # have emptied the token, and the cell proves nothing.
            return False if token in self._branches.record_in(cells, self._name).tokens else None

        return self._branches.swap(self._name, swapped, operation=operation, also_read=[cell], judge=judge)

    def __repr__(self) -> str:
        return f"Branch({self._name!r} of {self._context.repository!r})"
