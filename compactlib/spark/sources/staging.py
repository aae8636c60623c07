# SPDX-License-Identifier: Apache-2.0
"""`compactlib.staging`: a branch's records as rows, partitioned by ranges.

Planning takes the branch's record, whose tokens and metarange every part then reads, so that all parts see the same
layers. Staged entries are laid over ranges on reading; where there are none, no work is done record by record.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import takewhile
from typing import Any, ClassVar, Final, Self

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from compactlib.errors import InvalidInput, NotFound, Stale
from compactlib.files.disk import local_path
from compactlib.kv import KVStore, MemoryStore, SqliteStore
from compactlib.objects import LocalObjects
from compactlib.spark.sources.arrow_arrays import schema_of
from compactlib.spark.sources.table_source import Option, TableOptions, TableSource, neighbours, one_of
from compactlib.staging import CommittedRanges, Repository
from compactlib.staging.committed.change_reader import ChangeReader
from compactlib.staging.committed.formats.parquet import ArrowRows, ParquetFormat
from compactlib.staging.committed.formats.rows import ChangeBatch
from compactlib.staging.errors import MetaRangeNotFound, RangeNotFound
from compactlib.staging.model.values import Change, MetaRangeId, RangeEntry, RangeId
from compactlib.staging.operations.branch_view import BranchView
from compactlib.staging.operations.listing import upper_bound
from compactlib.staging.records.layers import MergedTokens
from compactlib.staging.records.record import BranchRecord
from compactlib.staging.records.tokens import StagingTokens

# What the column state says of the newest record of a key: HEAD has it; a compaction made it, and HEAD has not, or with
# another identity; it is in a sealed token, or in the staging token.
COMMITTED, COMPACTED, SEALED, STAGED = "committed", "compacted", "sealed", "staged"

MAX_BATCH_ROWS: Final = 8192
"""Rows in one batch."""

_WHAT: Final = ("branch", "at", "metarange")
_KEYS: Final = {"prefix", "first", "last"}


@attrs.frozen(kw_only=True)
class KeyRange:
    """The keys from `first` on and below `behind`, if there is that."""

    first: bytes = b""
    behind: bytes | None = None


@attrs.frozen(kw_only=True)
class StagingSourceOptions(TableOptions):
    """What a reader of the source may ask for, besides `TableOptions`: see `docs/spark.md`. The folder is that of the
    ranges, or with `opener` whatever was given, for that function."""

    kv: str | None = None
    opener: str | None = None
    repository: str = "main"
    branch: str | None = None
    at: str | None = None
    metarange: MetaRangeId | None = None
    tombstones: bool = False
    keys: KeyRange = KeyRange()
    known: ClassVar[Mapping[str, Option]] = {
        **{name: Option(name, str) for name in ("opener", "repository", "branch", "at")},
        "kv": Option("kv", lambda text: local_path(text, "the option kv") if text else None),
        "metarange": Option("metarange", MetaRangeId),
        "tombstones": one_of("tombstones", {"false": False, "true": True}),
        "keys": one_of("keys", {"text": str.encode, "hex": bytes.fromhex})}
    what: ClassVar[str] = "branch"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """See `TableOptions.parse`; also refuses options that do not go together."""
        known = {name: Option(name, str) for name in _KEYS}
        if "opener" in map(str.lower, options):
            known["path"] = Option("folder", str)
        values = {"folder": "", **cls.values(options, known)}
        named, kv, opener = [name for name in _WHAT if values.get(name)], values.get("kv"), values.get("opener")
        for is_wrong, why in (
            (len(named) != 1, f"say what to read by one of {', '.join(_WHAT)}; given: {' and '.join(named) or 'none'}"),
            (kv and opener, "options 'opener' and 'kv' were both given; what 'opener' names opens the key-value store"),
            (not (kv or opener or "metarange" in named),
             "where are the branches? Give option 'kv', the SQLite file, or 'opener', a function that opens other "
             "stores; a metarange alone needs neither"),
            (values.get("tombstones") and named != ["branch"],
             "option 'tombstones' needs option 'branch'; what is committed has no tombstones"),
        ):
            if is_wrong:
                raise InvalidInput(why)
        read = values.pop("keys", str.encode)
        try:
            keys: dict[str, bytes] = {name: read(values.pop(name)) for name in _KEYS & values.keys()}
        except ValueError as error:
            raise InvalidInput(f"one of {', '.join(sorted(_KEYS))} has a text, which is no key: {error}") from error
        if "first" in keys and "last" in keys and keys["first"] > keys["last"]:
            raise InvalidInput(f"first is {keys['first']!r}, which lies above last, {keys['last']!r}")
        prefix = keys.get("prefix", b"")
        ends = [upper_bound(prefix), keys["last"] + b"\0" if "last" in keys else None]
        return cls(**values, keys=KeyRange(first=max(prefix, keys.get("first", b"")), behind=min(
            (end for end in ends if end is not None), default=None)))

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        deleted = (("deleted", "boolean"),) if self.tombstones else ()
        value = (("value", "binary"),) if self.payload else ()
        return (("key", "binary"), ("identity", "binary"), ("length", "bigint"), ("state", "string"), *deleted, *value)

    def open(self) -> AbstractContextManager[Repository]:
        """The repository, in this process, for a `with` statement."""
        if self.opener is None:
            return _local_repository(self)
        try:
            found: Callable[[str], AbstractContextManager[Repository]] = pkgutil.resolve_name(self.opener)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(f"option 'opener' is {self.opener!r}, which cannot be imported here ({error}); it takes "
                               "package.module:function, which spark.addArtifacts('module.py', pyfile=True) ships to "
                               "the workers") from error
        return found(self.folder)


@contextmanager
def _local_repository(options: StagingSourceOptions) -> Iterator[Repository]:
    if not os.path.isdir(options.folder):
        raise NotFound(f"there is no folder {options.folder}; give the one that the ranges are in, under the path "
                       "that it has on every worker")
    # Ranges of either format are read; rows in memory are to be Arrow columns.
    committed = CommittedRanges(LocalObjects(options.folder), range_format=ParquetFormat(), cache_bytes=0)
    store: KVStore = MemoryStore() if options.kv is None else SqliteStore(options.kv, create=False)
    with closing(store):
        yield Repository(store, committed, name=options.repository)


@attrs.frozen(kw_only=True)
class BranchPart:
    """What one partition reads: some keys, of which these ranges of the base hold some, ascending. Of `committed` all
    records are, since HEAD has these ranges too. `head` is the metarange of HEAD; `record` is the branch's, as planned,
    if one is read."""

    keys: KeyRange
    ranges: tuple[RangeEntry, ...]
    committed: frozenset[RangeId]
    base: MetaRangeId | None
    head: MetaRangeId | None
    record: BranchRecord | None

    @property
    def size_bytes(self) -> int:
        """The logical size of its ranges."""
        return sum(each.size_bytes for each in self.ranges)


def plan_parts(repository: Repository, options: StagingSourceOptions) -> list[BranchPart]:
    """The parts to read, ascending by key. Reads the branch's record, a commit and a metarange, and no range."""
    record: BranchRecord | None = None
    if options.branch is not None:
        record = repository.context.branches.read(options.branch).record
        view = BranchView.of(repository.context, options.branch, record)
        base, head = view.base, view.head
    else:
        base = head = options.metarange if options.at is None else repository.at(options.at).metarange_id
    keys, ranges_of = options.keys, repository.context.committed.ranges_of
    if keys.behind is not None and keys.behind <= keys.first:
        return []
    of_head = frozenset(entry.range_id for entry in ranges_of(head))
    wanted = [entry for entry in ranges_of(base)
              if entry.max_key >= keys.first and (keys.behind is None or entry.min_key < keys.behind)]
    groups = neighbours(wanted, options.partition_bytes) or ([()] if record is not None else [])
    if not groups:
        return []
    ends = [group[-1].max_key + b"\0" for group in groups[:-1]]
    return [BranchPart(keys=KeyRange(first=first, behind=behind), ranges=group, base=base, head=head, record=record,
                       committed=of_head.intersection(entry.range_id for entry in group))
            for group, first, behind in zip(groups, [keys.first, *ends], [*ends, keys.behind], strict=True)]


def read_part(repository: Repository, part: BranchPart, options: StagingSourceOptions) -> Iterator[pa.RecordBatch]:
    """The records of a part, ascending by key; `Stale` if the branch was committed to, reset or compacted since."""
    try:
        yield from _PartReader(repository, part, options).batches()
    except (MetaRangeNotFound, RangeNotFound):
        _require_same_layers(repository, part, options)
        raise
    _require_same_layers(repository, part, options)


def _require_same_layers(repository: Repository, part: BranchPart, options: StagingSourceOptions) -> None:
    """Pass a part whose layers the branch still names: then none of them was cleaned up while it was read."""
    if part.record is not None and options.branch is not None and (
            not repository.context.branches.read(options.branch).record.extends(part.record)):
        raise Stale(f"branch {options.branch!r} was committed to, reset or compacted after this read was planned; load "
                    "the branch again to see it as it is now")


class _PartReader:
    """Lays what is staged over one part's ranges."""

    def __init__(self, repository: Repository, part: BranchPart, options: StagingSourceOptions) -> None:
        self._committed: CommittedRanges = repository.context.committed
        self._part = part
        self._options = options
        self._schema = schema_of(options.columns)
        # Which kind of token each key is in that was read and not yet laid over the ranges.
        self._kinds: dict[bytes, str] = {}
        self._staged = ChangeReader(
            () if part.record is None else self._newest(repository.context.tokens, part.record), most_bytes=4 << 20)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for entry in self._part.ranges:
            rows = self._committed.files.read_range(entry, keep=False)
            yield from self._laid_over(
                rows if isinstance(rows, ArrowRows) else ParquetFormat().rows(rows.pairs(0)), entry)
        yield from self._laid_over(_EMPTY, None)

    def _newest(self, tokens: StagingTokens, record: BranchRecord) -> Iterator[tuple[bytes, Change]]:
        """The newest staged entry of each of the part's keys."""
        keys = self._part.keys
        merged = MergedTokens(tokens, record.tokens, keys.first)
        for key, staged in merged:
            if keys.behind is not None and key >= keys.behind:
                return
            self._kinds[key] = SEALED if merged.layer else STAGED
            yield key, staged.record

    def _laid_over(self, rows: ArrowRows, entry: RangeEntry | None) -> Iterator[pa.RecordBatch]:
        """A range's rows with the staged entries up to its last key, or what is staged behind all, some at a time."""
        keys = self._part.keys
        rows = rows.part(rows.find(keys.first), len(rows) if keys.behind is None else rows.find(keys.behind))
        for part, staged in self._staged.laid_over(rows, None if entry is None else entry.max_key):
            yield from self._merged(part, entry, staged)

    def _merged(self, rows: ArrowRows, entry: RangeEntry | None, staged: ChangeBatch) -> Iterator[pa.RecordBatch]:
        columns = [*rows.columns, self._states(rows, entry)]
        if staged:
            new = (staged.keys, staged.identities, staged.datas)
            added: list[Any] = [*(pa.array(column, pa.binary()) for column in new),
                                pa.array(map(self._kinds.pop, staged.keys), pa.string())]
            is_hidden = pc.is_in(columns[0], value_set=added[0])
            if not self._options.tombstones:
                is_record = added[1].is_valid()
                added = [column.filter(is_record) for column in added]
            columns = [pa.concat_arrays([column.filter(pc.invert(is_hidden)), more])
                       for column, more in zip(columns, added, strict=True)]
            order = pc.array_sort_indices(columns[0])
            columns = [column.take(order) for column in columns]
        for start in range(0, len(columns[0]), MAX_BATCH_ROWS):
            key, identity, value, state = (column.slice(start, MAX_BATCH_ROWS) for column in columns)
            yield pa.RecordBatch.from_pydict(
                {"key": key, "identity": identity, "state": state, "value": value, "deleted": identity.is_null(),
                 "length": pc.binary_length(value).cast(pa.int64())}, schema=self._schema)

    def _states(self, rows: ArrowRows, entry: RangeEntry | None) -> Any:
        committed = pa.repeat(pa.scalar(COMMITTED), len(rows))
        if entry is None or entry.range_id in self._part.committed or not len(rows):
            return committed
        differences = self._committed.diff(self._part.head, self._part.base, entry.min_key)
        made = [one.key for one in takewhile(lambda one: one.key <= entry.max_key, differences)]
        is_made = pc.is_in(rows.columns[0], value_set=pa.array(made, pa.binary()))
        return pc.if_else(is_made, pa.scalar(COMPACTED), committed)


_EMPTY: Final = ParquetFormat().rows([])


class StagingSource(TableSource):
    """See `register`."""

    source: ClassVar[str] = "compactlib.staging"
    options_class: ClassVar[type[TableOptions]] = StagingSourceOptions

    @staticmethod
    def plan(options: StagingSourceOptions) -> list[BranchPart]:
        with options.open() as repository:
            return plan_parts(repository, options)

    @staticmethod
    def read_part(part: BranchPart, options: StagingSourceOptions) -> Iterator[pa.RecordBatch]:
        with options.open() as repository:
            yield from read_part(repository, part, options)
