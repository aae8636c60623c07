# SPDX-License-Identifier: Apache-2.0
"""The reads of a branch: one key, many, a page of a listing, a page of what is uncommitted; and those of a commit.

Each call gives of each key what the branch held at some moment while it ran (see `branch_view.py`): stores read several
keys at several moments. A listing of many pages is many calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from compactlib.staging.context import StagingContext
from compactlib.staging.errors import RecordNotFound, TooManyKeys
from compactlib.staging.listing import ListRequest, list_page, page_of, upper_bound
from compactlib.staging.names import CommitId
from compactlib.staging.options import MAX_BATCH_KEYS
from compactlib.staging.pages import DiffPage, ListPage
from compactlib.staging.uncommitted import first_uncommitted, uncommitted_keys
from compactlib.staging.values import Difference, MetaRangeId, RangeFile, Record, check_key
from compactlib.staging.view import BranchView, consistently


def get(context: StagingContext, branch: str, key: bytes) -> Record:
    """The record of a key. One request for the branch, one per token down to the key, one more for the branch.

    Raises:
        RecordNotFound: the branch has none.
    """
    check_key(key)

    def read(view: BranchView) -> tuple[Record | None, bool]:
        found = view.find(key)
        return found.record, found.in_staging_token

    record = consistently(context, branch, read)
    if record is None:
        raise RecordNotFound(ref=branch, key=key)
    return record


def get_many(context: StagingContext, branch: str, keys: Iterable[bytes]) -> dict[bytes, Record]:
    """The records of those keys that have one, each as it is at some moment of the call.

    Raises:
        TooManyKeys: more than `MAX_BATCH_KEYS` were given.
    """
    wanted = checked_keys(keys)

    def read(view: BranchView) -> tuple[dict[bytes, Record], bool]:
        found = view.find_many(wanted)
        # Those of the staging token alone were each the newest, the others are of a state that has to hold.
        return {key: place.record for key, place in found.items() if place.record is not None}, False

    return consistently(context, branch, read)


def list_branch(context: StagingContext, branch: str, request: ListRequest) -> ListPage:
    """One page of a listing."""

    def read(view: BranchView) -> tuple[tuple[ListPage, BranchView], bool]:
        return (list_page(view, request), view), False

    page, view = consistently(context, branch, read)
    if page.tombstones:
        context.activity.listed_tombstones(branch, view.record, page.tombstones)
    return page


def diff_uncommitted(context: StagingContext, branch: str, *, prefix: bytes, after: bytes | None,
                     limit: int) -> DiffPage:
    """One page of what differs from HEAD; see `compactlib.staging.uncommitted`.

    Raises:
        InvalidInput: `limit` is out of its range.
    """
    request = ListRequest(prefix=prefix, after=after, limit=limit, max_scanned=context.options.max_scanned)

    def read(view: BranchView) -> tuple[DiffPage, bool]:
        return diff_page(view, request), False

    return consistently(context, branch, read)


def diff_page(view: BranchView, request: ListRequest) -> DiffPage:
    """One page of what differs from HEAD, as the layers of a view show it."""
    start = request.start()
    assert start is not None, "without a delimiter every key has one above it"
    differences: list[Difference] = []
    last: bytes | None = None
    keys = uncommitted_keys(view, start, prefix=request.prefix, page_size=request.limit + 1)
    scanned = 0
    for key, difference in keys:
        if len(differences) == request.limit or scanned == request.max_scanned:
            return DiffPage(differences=tuple(differences), next_after=last, scanned=scanned)
        scanned += 1
        last = key
        if difference is not None:
            differences.append(difference)
    return DiffPage(differences=tuple(differences), next_after=None, scanned=scanned)


def is_dirty(context: StagingContext, branch: str) -> bool:
    """Whether anything differs from HEAD. May read all staged entries."""
    return consistently(context, branch, lambda view: (first_uncommitted(view) is not None, False))


def checked_keys(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    """The keys of one call, each once.

    Raises:
        TooManyKeys: more than `MAX_BATCH_KEYS`.
        InvalidInput: one is empty, too long, or not bytes.
    """
    given = tuple(keys)
    if len(given) > MAX_BATCH_KEYS:
        raise TooManyKeys(count=len(given), limit=MAX_BATCH_KEYS)
    for key in given:
        check_key(key)
    return tuple(dict.fromkeys(given))


@attrs.frozen
class CommittedView:
    """The records of one commit: they never change, and staged or compacted ones are never among them (G6).

    Attributes:
        context: the stores.
        ref: what was asked for, for the errors.
        commit_id: the commit; `None` for a branch without one, which is empty.
        metarange_id: its records.
    """

    context: StagingContext = attrs.field(repr=False)
    ref: str
    commit_id: CommitId | None
    metarange_id: MetaRangeId | None

    def get(self, key: bytes) -> Record:
        """The record of a key.

        Raises:
            RecordNotFound: the commit has none.
        """
        check_key(key)
        record = self.context.committed.get(self.metarange_id, key)
        if record is None:
            raise RecordNotFound(ref=self.ref, key=key)
        return record

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """The records of those keys that have one.

        Raises:
            TooManyKeys: more than 1000 were given.
        """
        return self.context.committed.get_many(self.metarange_id, checked_keys(keys))

    def list(self, *, prefix: bytes = b"", delimiter: bytes = b"", after: bytes | None = None, limit: int = 1000,
             ) -> ListPage:
        """One page of a listing; see `Branch.list`."""
        request = ListRequest(prefix=prefix, delimiter=delimiter, after=after, limit=limit,
                              max_scanned=self.context.options.max_scanned)
        start = request.start()
        if start is None:
            return ListPage(entries=(), next_after=None)
        return page_of(self.context.committed.scan(self.metarange_id, start), request)

    def records(self, prefix: bytes = b"") -> Iterator[tuple[bytes, Record]]:
        """Every record whose key begins so, in order."""
        behind = upper_bound(prefix)
        for key, record in self.context.committed.scan(self.metarange_id, prefix):
            if behind is not None and key >= behind:
                return
            yield key, record

    def files(self) -> tuple[RangeFile, ...]:
        """Return the files that hold these records, one for each range, in the order of their keys.

        With `ParquetFormat` they are Parquet files that other tools open. Uncommitted changes are not in them. A file
        stays as long as a branch reaches the commit, and after that for the `range_grace_seconds` of the repository.
        Reads the metarange and opens no range.

        Raises:
            MetaRangeNotFound: the metarange was collected.
        """
        committed = self.context.committed
        return tuple(
            RangeFile(committed.files.path_of_range(entry.range_id), entry.count, entry.size_bytes, entry.min_key,
                      entry.max_key)
            for entry in committed.ranges_of(self.metarange_id))
