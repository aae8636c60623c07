# SPDX-License-Identifier: Apache-2.0
"""`BranchView`: one state of a branch, seen through its layers; `consistently`, which reads until a view held; and
`CommittedView`: a commit, which never changes.

A view is only a list of places: the tokens of a record, and the metarange under them. While a view is read, a commit or
a compaction may move the contents of those places elsewhere, and a cleanup may empty them. A read through a view is
therefore worth something only if the branch's record still names all its layers afterwards. One place needs no second
look: what lies in the staging token is newer than everything else, and a write that is newer still was not acknowledged
before the read began.

What is uncommitted is defined by result: a key is uncommitted if the branch gives another answer for it than HEAD. A
staged entry therefore always decides alone, also when it restores what HEAD has: then a difference that a compaction
made of the same key is no longer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import attrs

from compactlib.staging.context import StagingContext
from compactlib.staging.errors import MetaRangeNotFound, RangeNotFound, RecordNotFound, TooManyKeys, TooManyTries
from compactlib.staging.listing import DiffPage, ListPage, ListRequest, page_of, upper_bound
from compactlib.staging.names import CommitId
from compactlib.staging.options import MAX_BATCH_KEYS
from compactlib.staging.record import BranchRecord
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Difference, MetaRangeId, RangeFile, Record, check_key

T = TypeVar("T")

_MAX_CELLS: Final = 10_000
"""Entries asked for in one call: as many sealed tokens are read at once."""


@attrs.frozen
class Found:
    """Where a key was found.

    Attributes:
        layer: 0 for the staging token, 1 and up for the sealed ones, newest first; one more for the base; `None` if no
            layer holds anything of the key.
        record: its value; `None` if it has none: no record anywhere, or a tombstone on top.
    """

    layer: int | None = None
    record: Record | None = None

    @property
    def in_staging_token(self) -> bool:
        """Whether it was found where writes go."""
        return self.layer == 0


@attrs.frozen
class BranchView:
    """A state of a branch: the tokens of its record, newest first, over its base.

    Attributes:
        context: the stores.
        record: the branch's record.
        head: the metarange of HEAD; `None` if nothing was ever committed.
    """

    context: StagingContext
    record: BranchRecord
    head: MetaRangeId | None

    @classmethod
    def of(cls, context: StagingContext, branch: str, record: BranchRecord) -> BranchView:
        """Return the view of a record. Reads the HEAD commit, if it is not in memory."""
        context.activity.read(branch, record)
        return cls(context, record, context.commits.metarange_of(record.commit_id))

    @property
    def base(self) -> MetaRangeId | None:
        """The metarange under the tokens."""
        return self.record.base(self.head)

    # --- keys

    def find_many(self, keys: Sequence[bytes], *, first_layer: int = 0) -> dict[bytes, Found]:
        """Return where the newest record or tombstone of each key is: two requests, and each range of the base once."""
        found = self.find_staged(keys, first_layer=first_layer)
        missing = [key for key, place in found.items() if place.layer is None]
        if missing:
            base_layer = len(self.record.tokens)
            found.update((key, Found(base_layer, record))
                         for key, record in self.context.committed.get_many(self.base, missing).items())
        return found

    def find_staged(self, keys: Sequence[bytes], *, first_layer: int = 0) -> dict[bytes, Found]:
        """The same in the tokens alone: one request for the staging token, one for all sealed ones."""
        found = dict.fromkeys(keys, Found())
        tokens, missing = self.record.tokens, list(keys)
        step = max(1, _MAX_CELLS // max(1, len(keys)))
        for first, stop in pairwise([0, *range(1, len(tokens), step), len(tokens)]):
            if first < first_layer or not missing:
                continue
            cells = self.context.tokens.get_many(tokens[first:stop], missing)
            for key in missing:
                layer = next((layer for layer in range(first, stop) if (tokens[layer], key) in cells), None)
                if layer is not None:
                    found[key] = Found(layer, cells[tokens[layer], key].record)
            missing = [key for key, place in found.items() if place.layer is None]
        return found

    def page(self, request: ListRequest) -> ListPage:
        """Return one page of a listing."""
        start = request.start()
        if start is None:
            return ListPage()
        return page_of(MergedTokens(self.context.tokens, self.record.tokens, start, prefix=request.prefix,
                                    page_size=request.limit + 1, base=self.context.committed.scan(self.base, start)),
                       request)

    # --- what is uncommitted

    def diff_page(self, request: ListRequest) -> DiffPage:
        """Return one page of what differs from HEAD."""
        differences: list[Difference] = []
        last: bytes | None = None
        scanned = 0
        for key, difference in self.uncommitted(request.start() or b"", prefix=request.prefix,
                                                page_size=request.limit + 1):
            if len(differences) == request.limit or scanned == request.max_scanned:
                return DiffPage(differences=tuple(differences), next_after=last, scanned=scanned)
            scanned += 1
            last = key
            if difference is not None:
                differences.append(difference)
        return DiffPage(differences=tuple(differences), next_after=None, scanned=scanned)

    def first_uncommitted(self, *, include_staging: bool = True) -> Difference | None:
        """The first difference from HEAD; `None` if there is none. May read all staged entries."""
        found = self.uncommitted(page_size=1, include_staging=include_staging)
        return next((difference for _, difference in found if difference is not None), None)

    def uncommitted(self, start: bytes = b"", *, prefix: bytes = b"", page_size: int | None = None,
                    include_staging: bool = True) -> Iterator[tuple[bytes, Difference | None]]:
        """Every key that might differ from HEAD, in order, with its difference or `None`.

        Args:
            start: begin at the first key >= `start`.
            prefix: only keys that begin so.
            page_size: how many entries to ask each token for at first.
            include_staging: `False` leaves the staging token out, as if nothing had been written to it.
        """
        start = max(start, prefix)
        committed, end = self.context.committed, upper_bound(prefix)
        tokens = self.record.tokens if include_staging else self.record.sealed_tokens
        staged = MergedTokens(self.context.tokens, tokens, start, prefix=prefix, page_size=page_size)
        compacted: Iterator[Difference] = iter(())
        if self.record.compacted_metarange_id is not None and (end is None or start < end):
            compacted = committed.diff(self.head, self.record.compacted_metarange_id, start, end)
        entry, difference = next(staged, None), next(compacted, None)
        while entry is not None or difference is not None:
            if entry is None or (difference is not None and difference.key < entry[0]):
                assert difference is not None
                yield difference.key, difference
                difference = next(compacted, None)
                continue
            key, record = entry
            if difference is not None and difference.key == key:
                yield key, Difference.between(key, difference.left, record)
                difference = next(compacted, None)
            else:
                yield key, Difference.between(key, committed.get(self.head, key), record)
            entry = next(staged, None)


def consistently(context: StagingContext, branch: str, read: Callable[[BranchView], T], *,
                 holds: Callable[[T], bool] = lambda _: False) -> T:
    """Read through views of a branch until one held.

    Args:
        context: the stores.
        branch: the branch's name.
        read: reads through a view. What it raises goes through, but not the absence of a file that the branch names no
            longer.
        holds: whether a result holds without a second look.

    Raises:
        BranchNotFound: there is no such branch.
        TooManyTries: the layers were replaced under every try.
    """
    record = context.branches.read(branch)
    for _ in context.branches.tries():
        missing: MetaRangeNotFound | RangeNotFound | None = None
        try:
            result = read(BranchView.of(context, branch, record))
            if holds(result):
                return result
        except (MetaRangeNotFound, RangeNotFound) as error:
            missing = error
        now = context.branches.read(branch)
        if now.extends(record):
            if missing is not None:
                raise missing
            return result
        record = now
    raise TooManyTries(operation="read", branch=branch, tries=context.options.retries.tries)


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

    @classmethod
    def of(cls, context: StagingContext, ref: str) -> CommittedView:
        """The records that a branch's HEAD, or a commit, has now."""
        commit_id = context.resolve(ref)
        return cls(context, ref, commit_id, context.commits.metarange_of(commit_id))

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
        return ListPage() if start is None else page_of(self.context.committed.scan(self.metarange_id, start), request)

    def records(self, prefix: bytes = b"") -> Iterator[tuple[bytes, Record]]:
        """Every record whose key begins so, in order."""
        for key, record in self.context.committed.scan(self.metarange_id, prefix):
            if not key.startswith(prefix):
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
