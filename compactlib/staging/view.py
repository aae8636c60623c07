# SPDX-License-Identifier: Apache-2.0
"""`BranchView`: one state of a branch, read through its layers. `CommittedView`: an immutable commit. `consistently`:
repeats a read until its view was valid.

A view is a list of layers: the tokens of a record, and the metarange under them. During a read, a commit or a
compaction may move the entries of these layers, and a cleanup may remove them. So a read is valid only if the branch's
record still names all its layers afterwards. A key found in the staging token needs no second check: the staging token
is the newest layer, and a newer write was not acknowledged before the read began.

A key is uncommitted if the branch and HEAD read it differently. So a staged entry alone decides about its key. If it
restores the record of HEAD, the key is not uncommitted, even if the compacted metarange differs.

A page of a listing merges staged entries with the base, drops tombstones, and folds common prefixes. It reads a bounded
number of entries, and seeks past a common prefix once it has found a key with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import Final, TypeVar

import attrs

from compactlib._arguments import is_whole
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import MetaRangeNotFound, RangeNotFound, RecordNotFound
from compactlib.staging.ranges.committed import RangeScan, aligned
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import DiffPage, Listed, ListPage
from compactlib.staging.tokens import MergedTokens, get_staged
from compactlib.staging.values import (
    CommitId,
    Difference,
    MetaRangeId,
    RangeFile,
    Record,
    check_key,
    checked_keys,
)

T = TypeVar("T")

_MAX_CELLS: Final = 10_000
"""Entries read in one request; bounds how many sealed tokens are read together."""


MAX_LIST_LIMIT: Final = 10_000
"""The most entries of one page."""


@attrs.frozen(kw_only=True)
class ListRequest:
    """The arguments of a page of a listing; see `Branch.list`. A page reads at most `max_scanned` entries."""

    prefix: bytes = b""
    delimiter: bytes = b""
    after: bytes | None = None
    limit: int = attrs.field(default=1000, validator=is_whole(1, MAX_LIST_LIMIT))
    max_scanned: int

    def common_prefix(self, key: bytes) -> bytes | None:
        """Return the common prefix of a key; `None` if the key is not folded."""
        if not self.delimiter:
            return None
        at = key.find(self.delimiter, len(self.prefix))
        return None if at < 0 else key[:at + len(self.delimiter)]

    def start(self) -> bytes | None:
        """Return the first key that may be listed; `None` if no key may."""
        if self.after is None:
            return self.prefix
        if self.after.startswith(self.prefix) and self.common_prefix(self.after) == self.after:
            behind = upper_bound(self.after)
            return None if behind is None else max(behind, self.prefix)
        return max(self.after + b"\0", self.prefix)


def upper_bound(prefix: bytes) -> bytes | None:
    """Return the smallest key above all keys with `prefix`; `None` if the prefix is empty or all 0xFF."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def page_of(source: MergedTokens | RangeScan, request: ListRequest) -> ListPage:
    """Return one page of a scan that begins at `request.start()`."""
    entries: list[Listed] = []
    tombstones = 0
    after: bytes | None = None
    for key, record in source:
        if not key.startswith(request.prefix):
            break
        is_full = len(entries) == request.limit or source.scanned > request.max_scanned
        # Not between a tombstone that is itself a common prefix and the keys with it: `after` would skip these.
        if is_full and after is not None and not (key.startswith(after) and request.common_prefix(after) == after):
            return ListPage(entries=tuple(entries), next_after=after, scanned=source.scanned, tombstones=tombstones)
        after = key
        if record is None:
            tombstones += 1
            continue
        folded = request.common_prefix(key)
        if folded is None:
            entries.append(Listed(key, record))
            continue
        entries.append(Listed(folded, None))
        after = folded
        behind = upper_bound(folded)
        if behind is None:
            break
        source.seek(behind)
    return ListPage(entries=tuple(entries), scanned=source.scanned, tombstones=tombstones)


@attrs.frozen
class KeyState:
    """The newest record of a key, `None` for a tombstone or no record; and whether the staging token holds it."""

    record: Record | None
    is_in_staging_token: bool = False


@attrs.frozen
class BranchView:
    """A state of a branch: the tokens of its record, newest first, over its base. `head` is HEAD's metarange."""

    context: StagingContext
    record: BranchRecord
    head: MetaRangeId | None

    @classmethod
    def of(cls, context: StagingContext, record: BranchRecord) -> BranchView:
        """Return the view of a record. Reads the HEAD commit, unless cached."""
        return cls(context, record, context.commits.metarange_of(record.commit_id))

    @property
    def base(self) -> MetaRangeId | None:
        """The metarange under the tokens."""
        return self.record.base(self.head)

    # --- keys

    def find_many(self, keys: Sequence[bytes], *, skip_staging_token: bool = False) -> dict[bytes, KeyState]:
        """Return the newest state of each key. Two requests, and each range of the base once."""
        found: dict[bytes, KeyState] = {}
        tokens, missing = self.record.tokens, keys
        step = max(1, _MAX_CELLS // max(1, len(keys)))
        for first, stop in pairwise([0, *range(1, len(tokens), step), len(tokens)]):
            if missing and not (skip_staging_token and first == 0):
                cells = get_staged(self.context.store, tokens[first:stop], missing)
                for token, key in product(tokens[first:stop], missing):
                    if key not in found and (token, key) in cells:
                        found[key] = KeyState(cells[token, key].record, is_in_staging_token=first == 0)
                missing = [key for key in missing if key not in found]
        if missing:
            committed = self.context.committed.get_many(self.base, missing)
            found.update((key, KeyState(committed.get(key))) for key in missing)
        return found

    def page(self, request: ListRequest) -> ListPage:
        """Return one page of a listing."""
        start = request.start()
        if start is None:
            return ListPage()
        return page_of(MergedTokens(self.context.store, self.record.tokens, start, prefix=request.prefix,
                                    page_size=request.limit + 1, base=self.context.committed.scan(self.base, start)),
                       request)

    # --- uncommitted changes

    def diff_page(self, request: ListRequest) -> DiffPage:
        """Return one page of the differences from HEAD."""
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

    def first_uncommitted(self, *, prefix: bytes = b"", include_staging: bool = True) -> Difference | None:
        """Return the first difference from HEAD, or `None`. May read all staged entries."""
        found = self.uncommitted(prefix=prefix, page_size=1, include_staging=include_staging)
        return next((difference for _, difference in found if difference is not None), None)

    def uncommitted(self, start: bytes = b"", *, prefix: bytes = b"", page_size: int | None = None,
                    include_staging: bool = True) -> Iterator[tuple[bytes, Difference | None]]:
        """Yield every key >= `start` that a token or a compaction changed, with its difference from HEAD, if any."""
        start = max(start, prefix)
        committed, end = self.context.committed, upper_bound(prefix)
        tokens = self.record.tokens if include_staging else self.record.sealed_tokens
        staged = MergedTokens(self.context.store, tokens, start, prefix=prefix, page_size=page_size)
        compacted: Iterator[Difference] = iter(())
        if self.record.compacted_metarange_id is not None and (end is None or start < end):
            compacted = committed.diff(self.head, self.record.compacted_metarange_id, start, end)
        for key, entry, change in aligned(staged, ((each.key, each) for each in compacted)):
            if entry is None:
                yield key, None if change is None else change[1]
            else:
                before = committed.get(self.head, key) if change is None else change[1].left
                yield key, Difference.between(key, before, entry[1])


def consistently(context: StagingContext, branch: str, read: Callable[[BranchView], T], *,
                 holds: Callable[[T], bool] = lambda _: False) -> T:
    """Read through views of a branch until a view is still valid after the read, and return the result.

    Errors of `read` pass through, except that of a file that the branch no longer names. A result that `holds` needs no
    second read of the record.
    """
    record = context.branches.read(branch)
    for _ in context.cells.tries():
        missing: MetaRangeNotFound | RangeNotFound | None = None
        try:
            result = read(BranchView.of(context, record))
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
    raise context.branches.overtaken("read", branch)


@attrs.frozen
class CommittedView:
    """The records of one commit. They are immutable, and never staged or compacted records (G6).

    `commit_id` and `metarange_id` are `None` for a branch without a commit, which is empty.
    """

    context: StagingContext = attrs.field(repr=False)
    ref: str
    commit_id: CommitId | None
    metarange_id: MetaRangeId | None

    @classmethod
    def of(cls, context: StagingContext, ref: str) -> CommittedView:
        """Return the view of a commit, or of a branch's present HEAD."""
        commit_id = context.resolve(ref)
        return cls(context, ref, commit_id, context.commits.metarange_of(commit_id))

    def get(self, key: bytes) -> Record:
        """Return the record of a key, or raise `RecordNotFound`."""
        check_key(key)
        record = self.context.committed.get(self.metarange_id, key)
        if record is None:
            raise RecordNotFound(ref=self.ref, key=key)
        return record

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """Return the records of the keys that exist, of at most 1000."""
        return self.context.committed.get_many(self.metarange_id, checked_keys(keys))

    def list(self, *, prefix: bytes = b"", delimiter: bytes = b"", after: bytes | None = None, limit: int = 1000,
             ) -> ListPage:
        """Return one page of a listing; see `Branch.list`."""
        request = ListRequest(prefix=prefix, delimiter=delimiter, after=after, limit=limit,
                              max_scanned=self.context.options.max_scanned)
        start = request.start()
        return ListPage() if start is None else page_of(self.context.committed.scan(self.metarange_id, start), request)

    def records(self, prefix: bytes = b"") -> Iterator[tuple[bytes, Record]]:
        """Yield every record whose key has a prefix, in order."""
        for key, record in self.context.committed.scan(self.metarange_id, prefix):
            if not key.startswith(prefix):
                return
            yield key, record

    def files(self) -> tuple[RangeFile, ...]:
        """Return the files of these records, one for each range, in order of their keys.

        With `ParquetFormat` they are Parquet files for other tools. They hold no uncommitted changes. A file stays
        while a branch reaches the commit, and then for the repository's `range_grace_seconds`. Reads the metarange,
        and no range.

        Raises:
            MetaRangeNotFound: the metarange was collected.
        """
        committed = self.context.committed
        return tuple(
            RangeFile(committed.path_of_range(entry.range_id), entry.count, entry.size_bytes, entry.min_key,
                      entry.max_key)
            for entry in committed.ranges_of(self.metarange_id))
