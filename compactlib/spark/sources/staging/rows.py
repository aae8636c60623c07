# SPDX-License-Identifier: Apache-2.0
"""The records of a branch as Arrow batches: which parts of the keys are read, and what each gives.

Planning happens once, in one process: it takes the branch's record, whose tokens and metarange every part then reads,
so that all parts see the same layers. A part is some neighbouring ranges of the base and the gaps before and behind
them; staged entries are laid over it on reading. Where nothing is staged, no work is done record by record.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from compactlib.errors import Stale
from compactlib.spark.sources.arrow_arrays import schema_of
from compactlib.spark.sources.staging.options import KeyRange, StagingSourceOptions
from compactlib.spark.sources.table_source import Table, TableSource, neighbours
from compactlib.staging import CommittedRanges, Record, Repository
from compactlib.staging.committed.formats.parquet import ArrowRows, ParquetFormat
from compactlib.staging.errors import MetaRangeNotFound, RangeNotFound
from compactlib.staging.model.values import MetaRangeId, RangeEntry
from compactlib.staging.operations.branch_view import BranchView
from compactlib.staging.records.layers import MergedTokens
from compactlib.staging.records.record import BranchRecord

COMMITTED: Final = "committed"
"""State of a record that HEAD has, too."""
COMPACTED: Final = "compacted"
"""State of a record that a compaction made, and that HEAD has not, or with another identity."""
SEALED: Final = "sealed"
"""State of a record whose newest entry is in a sealed token."""
STAGED: Final = "staged"
"""State of a record whose newest entry is in the staging token."""

MAX_BATCH_ROWS: Final = 8192
"""Rows in one batch."""
MAX_STAGED_BYTES: Final = 4 << 20
"""Staged entries are laid over the base so many bytes at a time, or so many as fit into a batch."""
_StagedKey = tuple[bytes, str, Record | None]


@attrs.frozen(kw_only=True)
class PlannedRange:
    """A range of the base.

    Attributes:
        entry: which range.
        of_head: whether it is one of HEAD's as well, so that all its records are committed.
    """

    entry: RangeEntry
    of_head: bool

    @property
    def size_bytes(self) -> int:
        """The logical size of its records."""
        return self.entry.size_bytes


@attrs.frozen(kw_only=True)
class BranchPart:
    """What one partition reads.

    Attributes:
        keys: which keys.
        ranges: the ranges of the base that hold some of them, ascending.
        base: the metarange that they are of.
        head: the metarange of HEAD.
        record: the branch's, as planned; `None` where no branch is read.
    """

    keys: KeyRange
    ranges: tuple[PlannedRange, ...]
    base: MetaRangeId | None
    head: MetaRangeId | None
    record: BranchRecord | None

    @property
    def size_bytes(self) -> int:
        """The logical size of its ranges."""
        return sum(each.size_bytes for each in self.ranges)


def plan_parts(repository: Repository, options: StagingSourceOptions) -> list[BranchPart]:
    """The parts to read, ascending by key. Reads the branch's record, a commit and a metarange, and no range.

    Raises:
        BranchNotFound, CommitNotFound, MetaRangeNotFound: there is no such thing.
        CorruptData, Unsupported: as for `Repository`; and what its stores raise.
    """
    record: BranchRecord | None = None
    base: MetaRangeId | None
    head: MetaRangeId | None
    if options.metarange is not None:
        base = head = options.metarange
    elif options.at is not None:
        base = head = repository.at(options.at).metarange_id
    else:
        assert options.branch is not None
        record = repository.context.branches.read(options.branch).record
        view = BranchView.of(repository.context, options.branch, record)
        base, head = view.base, view.head
    keys = options.keys
    if keys.is_empty:
        return []
    of_head = {entry.range_id for entry in repository.context.committed.ranges_of(head)}
    wanted = [PlannedRange(entry=entry, of_head=entry.range_id in of_head)
              for entry in repository.context.committed.ranges_of(base)
              if entry.max_key >= keys.first and (keys.behind is None or entry.min_key < keys.behind)]
    groups = neighbours(wanted, options.partition_bytes) or ([()] if record is not None else [])
    if not groups:
        return []
    ends = [group[-1].entry.max_key + b"\0" for group in groups[:-1]]
    return [BranchPart(keys=KeyRange(first=first, behind=behind), ranges=group, base=base, head=head, record=record)
            for group, first, behind in zip(groups, [keys.first, *ends], [*ends, keys.behind], strict=True)]


def read_part(repository: Repository, part: BranchPart, options: StagingSourceOptions) -> Iterator[pa.RecordBatch]:
    """The records of a part, ascending by key.

    Raises:
        Stale: the branch was committed to, reset or compacted since the part was planned.
        CorruptData, Unsupported: as for `Repository`; and what its stores raise.
    """
    reader = _PartReader(repository, part, options)
    try:
        yield from reader.batches()
    except (MetaRangeNotFound, RangeNotFound):
        _require_same_layers(repository, part, options)
        raise
    _require_same_layers(repository, part, options)


def _require_same_layers(repository: Repository, part: BranchPart, options: StagingSourceOptions) -> None:
    """Pass a part whose layers the branch still names: then none of them was cleaned up while it was read."""
    if part.record is None or options.branch is None:
        return
    if not repository.context.branches.read(options.branch).record.extends(part.record):
        raise Stale(f"branch {options.branch!r} was committed to, reset or compacted after this read was planned; load "
                    "the branch again to see it as it is now")


def plan_slices(options: StagingSourceOptions) -> list[BranchPart]:
    """`plan_parts` of the repository that the options name."""
    with options.open() as repository:
        return plan_parts(repository, options)


def read_slice(part: BranchPart, options: StagingSourceOptions) -> Iterator[pa.RecordBatch]:
    """`read_part` of the repository that the options name."""
    with options.open() as repository:
        yield from read_part(repository, part, options)


class _PartReader:
    """Lays what is staged over one part's ranges."""

    def __init__(self, repository: Repository, part: BranchPart, options: StagingSourceOptions) -> None:
        self._committed: CommittedRanges = repository.context.committed
        self._part = part
        self._options = options
        self._schema = schema_of(options.columns)
        self._staged = _StagedKeys(repository, part)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for planned in self._part.ranges:
            rows = _rows_of(self._committed, planned.entry)
            yield from self._laid_over(rows, planned, planned.entry.max_key)
        yield from self._laid_over(_EMPTY, None, None)

    def _laid_over(self, rows: ArrowRows, planned: PlannedRange | None, last: bytes | None) -> Iterator[pa.RecordBatch]:
        """The base's rows with the staged entries up to `last`, some at a time."""
        keys = self._part.keys
        at, stop = rows.find(keys.first), len(rows) if keys.behind is None else rows.find(keys.behind)
        more = True
        while more:
            staged, more = self._staged.take(last)
            end = min(rows.find(staged[-1][0] + b"\0"), stop) if more else stop
            yield from self._merged(rows.part(at, max(at, end)), planned, staged)
            at = max(at, end)

    def _merged(self, rows: ArrowRows, planned: PlannedRange | None, staged: Sequence[_StagedKey],
                ) -> Iterator[pa.RecordBatch]:
        columns = [*rows.columns, self._states(rows, planned)]
        if staged:
            hidden = pc.is_in(columns[0], value_set=pa.array([key for key, _, _ in staged], pa.binary()))
            columns = [column.filter(pc.invert(hidden)) for column in columns]
            shown = [each for each in staged if each[2] is not None or self._options.tombstones]
            columns = [pa.concat_arrays([old, new])
                       for old, new in zip(columns, _columns_of(shown), strict=True)]
            order = pc.array_sort_indices(columns[0])
            columns = [column.take(order) for column in columns]
        for start in range(0, len(columns[0]), MAX_BATCH_ROWS):
            yield self._batch(*(column.slice(start, MAX_BATCH_ROWS) for column in columns))

    def _states(self, rows: ArrowRows, planned: PlannedRange | None) -> Any:
        committed = pa.repeat(pa.scalar(COMMITTED), len(rows))
        if planned is None or planned.of_head or not len(rows):
            return committed
        entry = planned.entry
        differences = self._committed.diff(self._part.head, self._part.base, entry.min_key)
        made = [one.key for one in takewhile(lambda one: one.key <= entry.max_key, differences)]
        is_made = pc.is_in(rows.columns[0], value_set=pa.array(made, pa.binary()))
        return pc.if_else(is_made, pa.scalar(COMPACTED), committed)

    def _batch(self, key: Any, identity: Any, value: Any, state: Any) -> pa.RecordBatch:
        made = {"key": key, "identity": identity, "state": state, "value": value,
                "length": pc.binary_length(value).cast(pa.int64())}
        if self._options.tombstones:
            made["deleted"] = identity.is_null()
        return pa.RecordBatch.from_arrays([made[name] for name in self._schema.names], schema=self._schema)


class _StagedKeys:
    """The newest staged entries of a part's keys, in order, some at a time."""

    def __init__(self, repository: Repository, part: BranchPart) -> None:
        self._behind = part.keys.behind
        self._entries = iter(()) if part.record is None else _newest(repository, part.record, part.keys.first)
        self._next: _StagedKey | None = next(self._entries, None)

    def take(self, last: bytes | None) -> tuple[list[_StagedKey], bool]:
        """Entries up to the key `last`, a bounded number; and whether there are more of them."""
        taken: list[_StagedKey] = []
        size = 0
        while self._next is not None and not self._is_behind(self._next[0], last):
            if len(taken) == MAX_BATCH_ROWS or size >= MAX_STAGED_BYTES:
                return taken, True
            taken.append(self._next)
            size += 0 if self._next[2] is None else len(self._next[2].data)
            self._next = next(self._entries, None)
        return taken, False

    def _is_behind(self, key: bytes, last: bytes | None) -> bool:
        return (last is not None and key > last) or (self._behind is not None and key >= self._behind)


def _newest(repository: Repository, record: BranchRecord, start: bytes) -> Iterator[_StagedKey]:
    """The newest staged entry of every key from `start` on, and which kind of token it is in."""
    tokens = repository.context.tokens
    staging = ((key, STAGED, each.record) for key, each in tokens.scan(record.staging_token, start))
    sealed = ((key, SEALED, each.record) for key, each in MergedTokens(tokens, record.sealed_tokens, start))
    previous: bytes | None = None
    # Of equal keys the first iterator's comes first.
    for entry in heapq.merge(staging, sealed, key=itemgetter(0)):
        if entry[0] != previous:
            yield entry
        previous = entry[0]


def _rows_of(committed: CommittedRanges, entry: RangeEntry) -> ArrowRows:
    rows = committed.files.read_range(entry, keep=False)
    return rows if isinstance(rows, ArrowRows) else ParquetFormat().rows(rows.pairs(0))


def _columns_of(staged: Sequence[_StagedKey]) -> list[Any]:
    records = [record for _, _, record in staged]
    return [
        pa.array([key for key, _, _ in staged], pa.binary()),
        pa.array([None if record is None else record.identity for record in records], pa.binary()),
        pa.array([None if record is None else record.data for record in records], pa.binary()),
        pa.array([state for _, state, _ in staged], pa.string()),
    ]


_EMPTY: Final = ParquetFormat().rows([])


class StagingSource(TableSource):
    """A branch's records as rows, partitioned by ranges; see `compactlib.spark.register` for columns and options."""

    table: ClassVar[Table] = Table("compactlib.staging", StagingSourceOptions, plan_slices, read_slice)
