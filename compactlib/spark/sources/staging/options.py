# SPDX-License-Identifier: Apache-2.0
"""The options of the data source `compactlib.staging`, and how a worker comes by the stores that they name."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import ClassVar, Self, TypeAlias

import attrs

from compactlib.errors import InvalidInput, NotFound
from compactlib.files.disk import local_path
from compactlib.kv import KVStore, MemoryStore, SqliteStore
from compactlib.objects import LocalObjects
from compactlib.spark.sources.table_options import Option, TableOptions, one_of, options_by_name
from compactlib.staging import CommittedRanges, Repository
from compactlib.staging.committed.formats.rows import check_id
from compactlib.staging.model.names import branch_key, repository_partition
from compactlib.staging.model.values import MetaRangeId
from compactlib.staging.operations.listing import upper_bound

RepositoryOpener: TypeAlias = Callable[[str], AbstractContextManager[Repository]]
"""What the option `opener` names: is given what `load` was given, `""` if nothing, and opens the repository where it is
called; the end of the `with` statement closes it. Decorate it with `contextlib.contextmanager`."""

_WHAT = ("branch", "at", "metarange")
_KEYS = one_of("keys", {"text": str.encode, "hex": bytes.fromhex})


@attrs.frozen(kw_only=True)
class KeyRange:
    """Some neighbouring keys.

    Attributes:
        first: the lowest that counts.
        behind: the lowest above `first` that no longer counts; `None` if all do.
    """

    first: bytes = b""
    behind: bytes | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no key lies in it."""
        return self.behind is not None and self.behind <= self.first

    @classmethod
    def of(cls, prefix: bytes, first: bytes | None, last: bytes | None) -> KeyRange:
        """The keys that begin with `prefix` and lie between `first` and `last` (inclusive)."""
        ends = [end for end in (upper_bound(prefix), None if last is None else last + b"\0") if end is not None]
        return cls(first=max(prefix, first or b""), behind=min(ends, default=None))


@attrs.frozen(kw_only=True)
class StagingSourceOptions(TableOptions):
    """What a reader of the source may ask for, besides `TableOptions`. The folder is that of the ranges, or with
    `opener` whatever was given, for that function.

    Attributes:
        kv: the SQLite file of the branches; `None` with `opener`, or where a metarange alone is read.
        opener: `module:function`: gives the repository where this is read; `None` if `folder` and `kv` do.
        repository: which of the store's repositories.
        branch: the branch to read with all that is staged.
        at: the commit, or the branch whose HEAD to read.
        metarange: the metarange to read.
        tombstones: give the keys whose newest staged entry is a tombstone, too.
        keys: which keys.
    """

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
        # These four are one field, and are taken out before.
        **{name: Option("keys", str) for name in ("keys", "prefix", "first", "last")}}
    what: ClassVar[str] = "branch"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """The options of `spark.read`, checked.

        Raises:
            InvalidInput: one is unknown, has a value that it cannot have, or they do not go together.
        """
        given = options_by_name(options)
        of_keys = {str(name): given.pop(name) for name in ("keys", "prefix", "first", "last") if name in given}
        path = given.get("path", "")
        if "opener" in given:
            given["path"] = "/"
        named = [name for name in _WHAT if given.get(name)]
        parsed = attrs.evolve(super().parse(given), keys=_keys(of_keys))
        if len(named) != 1:
            raise InvalidInput(f"say what to read by one of {', '.join(_WHAT)}; given: {' and '.join(named) or 'none'}")
        if "opener" in given:
            parsed = attrs.evolve(parsed, folder=path)
        parsed._check()
        return parsed

    def _check(self) -> None:
        repository_partition(self.repository)
        if self.branch is not None:
            branch_key(self.branch)
        if self.metarange is not None:
            check_id(self.metarange)
        if self.opener is not None:
            module, _, function = self.opener.partition(":")
            if not (all(map(str.isidentifier, module.split("."))) and function.isidentifier()):
                raise InvalidInput(f"option 'opener' is {self.opener!r}; it takes package.module:function, the name of "
                                   "a function that the workers can import")
        if self.opener is not None and self.kv is not None:
            raise InvalidInput("options 'opener' and 'kv' were both given; what 'opener' names opens the key-value "
                               "store")
        if self.opener is None and self.kv is None and self.metarange is None:
            raise InvalidInput("where are the branches? Give option 'kv', the SQLite file, or 'opener', a function "
                               "that opens other stores; a metarange alone needs neither")
        if self.tombstones and self.branch is None:
            raise InvalidInput("option 'tombstones' needs option 'branch'; what is committed has no tombstones")

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and Spark SQL types of the columns, in order."""
        deleted = (("deleted", "boolean"),) if self.tombstones else ()
        value = (("value", "binary"),) if self.payload else ()
        return (("key", "binary"), ("identity", "binary"), ("length", "bigint"), ("state", "string"), *deleted, *value)

    def open(self) -> AbstractContextManager[Repository]:
        """The repository, in this process, for a `with` statement.

        Raises:
            NotFound: there is no such folder.
            NotAStore: the file of the branches holds no store.
            InvalidInput: the function that `opener` names cannot be imported.
        """
        return _local_repository(self) if self.opener is None else _imported(self.opener)(self.folder)


@contextmanager
def _local_repository(options: StagingSourceOptions) -> Iterator[Repository]:
    from compactlib.staging.committed.formats.parquet import ParquetFormat

    if not os.path.isdir(options.folder):
        raise NotFound(f"there is no folder {options.folder}; give the one that the ranges are in, under the path "
                       "that it has on every worker")
    # Ranges of either format are read; rows in memory are to be Arrow columns.
    committed = CommittedRanges(LocalObjects(options.folder), range_format=ParquetFormat(), cache_bytes=0)
    store: KVStore = MemoryStore() if options.kv is None else SqliteStore(options.kv, create=False)
    with closing(store):
        yield Repository(store, committed, name=options.repository)


def _imported(name: str) -> RepositoryOpener:
    module, _, function = name.partition(":")
    try:
        found: RepositoryOpener = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"option 'opener' is {name!r}, which cannot be imported here ({error}); ship the module to "
                           "the workers: spark.addArtifacts('module.py', pyfile=True)") from error
    return found


def _keys(given: Mapping[str, str]) -> KeyRange:
    values: dict[str, bytes | None] = dict.fromkeys(("prefix", "first", "last"))
    for name, text in given.items():
        try:
            if name == "keys":
                _KEYS.read(text)
            else:
                values[name] = _KEYS.read(given.get("keys", "text"))(text)
        except ValueError as error:
            takes = f"takes {_KEYS.takes}" if name == "keys" else f"is no key: {error}"
            raise InvalidInput(f"option {name!r} is {text!r}, which {takes}") from error
    keys = KeyRange.of(values["prefix"] or b"", values["first"], values["last"])
    if values["first"] is not None and values["last"] is not None and values["first"] > values["last"]:
        raise InvalidInput(f"first is {given['first']!r}, which lies above last, {given['last']!r}")
    return keys
