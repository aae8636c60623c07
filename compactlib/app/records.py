# SPDX-License-Identifier: Apache-2.0
"""Staging repositories in an SQLite file for the commands: one, and a file that holds several.

The file is opened for reading alone, beside its owners; `compact` alone opens it for writing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from compactlib.app.stores import Asked, StoreAt
from compactlib.app.terminal import Answer, progress_bar
from compactlib.errors import InvalidInput, NotFound, Unsupported
from compactlib.files import list_folder
from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects, MemoryObjects, is_local_objects
from compactlib.report import Table, VerifyReport
from compactlib.runtime import Budget
from compactlib.staging import (
    AlwaysPolicy,
    CommittedRanges,
    Repository,
    StagingPlan,
    TombstoneCostPolicy,
    repository_in,
)


class KVStoreAt(StoreAt):
    """One store in one partition of an SQLite file."""

    def __init__(self, asked: Asked, partition: bytes = b"") -> None:
        super().__init__(asked)
        self.partition = partition

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqliteStore]:
        """The key-value store, for reading alone."""
        with contextlib.closing(SqliteStore(self.path, read_only=True)) as store:
            yield store


class RepositoryAt(KVStoreAt):
    """A staging repository: its records in the file, its ranges in a folder beside it."""

    kind = "staging repository"

    @property
    def _name(self) -> str:
        return repository_in(self.partition) or ""

    @contextlib.contextmanager
    def _opened(self, store: SqliteStore, *, writes: bool = False) -> Iterator[Repository]:
        objects = LocalObjects(self._objects())
        found = CommittedRanges(objects)
        with Repository(store, found, name=self._name) as repository:
            rule = repository.rule_of_ranges()
            # A range in Parquet is written anew as one, so that what reads them beside the library finds all.
            as_written = repository.format_of_ranges() if writes else None
        with Repository(store, CommittedRanges(objects, rule=rule, range_format=as_written), name=self._name,
                        policy=self._policy) as repository:
            yield repository

    def _objects(self) -> str:
        """The folder of the ranges; it must be there, since opening makes one."""
        if self.asked.objects is not None:
            if not is_local_objects(self.asked.objects):
                raise NotFound(f"{self.asked.objects} is no folder of objects; give that of the repository's ranges")
            return self.asked.objects
        beside = os.path.dirname(os.path.abspath(self.path))
        found = [name for name in list_folder(beside) if is_local_objects(os.path.join(beside, name))]
        if len(found) > 1 and "ranges" in found:
            found = ["ranges"]
        if len(found) != 1:
            raise InvalidInput(f"{self.path} is a {self.kind}, and beside it are {len(found)} folders of objects; say "
                               f"by --objects FOLDER where its ranges are")
        return os.path.join(beside, found[0])

    @property
    def _policy(self) -> AlwaysPolicy | TombstoneCostPolicy:
        return TombstoneCostPolicy() if self.asked.policy == "tombstone_cost" else AlwaysPolicy()

    @property
    def _branch(self) -> str:
        return self.asked.branch or "main"

    def inspect(self) -> Answer:
        """One row a branch; what the records alone say, wherever the ranges are."""
        nothing = CommittedRanges(MemoryObjects())
        with self.reading() as store, Repository(store, nothing, name=self._name) as repository:
            survey = repository.survey()
        rows = [{"branch": each.branch, "generation": each.generation, "sealed": each.sealed_tokens,
                 "compacted_at": each.compaction_started_at, "version": each.version} for each in survey.branches]
        data = {"path": self.path, "repository": survey.repository, "branches": survey.to_dicts(),
                "registered_tokens": survey.registered_tokens, "dropped_tokens": survey.dropped_tokens}
        return Answer(data, (Table.from_dicts(rows, title=f"{self.path}: {survey.table().title}"),))

    def planned(self) -> StagingPlan:
        """Of one branch."""
        with self.reading() as store, self._opened(store) as repository:
            return repository.plan(branch=self._branch)

    def chosen(self, plan: StagingPlan) -> tuple[list[Any], dict[str, list[str]]]:
        """The branch, or nothing."""
        return ([] if plan.is_empty else [plan.view.branch]), {}

    def compacted(self) -> Any:
        """By this process; others may try at the same time, and one commits."""
        budget = Budget(bytes_per_second=self.asked.rate, total_bytes=self.asked.max_bytes)
        with contextlib.closing(SqliteStore(self.path, create=False)) as store, \
                self._opened(store, writes=True) as repository, progress_bar("compact") as observer:
            return repository.compact(branch=self._branch, budget=budget, observer=observer)

    def verified(self) -> VerifyReport:
        """Every record, staged entry and range; not by what is cut next, which may be gone."""
        found = CommittedRanges(LocalObjects(self._objects()))
        with self.reading() as store, Repository(store, found, name=self._name) as repository:
            return repository.verify()


class SqliteFileAt(KVStoreAt):
    """A file with several repositories; they are inspected one by one."""

    kind = "file of several repositories"

    def __init__(self, asked: Asked, repositories: Sequence[RepositoryAt]) -> None:
        super().__init__(asked)
        self.repositories = repositories

    def inspect(self) -> Answer:
        """One row a repository."""
        rows = [{"partition": each.partition.decode()} for each in self.repositories]
        title = f"{self.path}: {len(rows):,} repositories; inspect one by --partition NAME"
        return Answer({"path": self.path, "repositories": rows}, (Table.from_dicts(rows, title=title),))

    def _which(self) -> InvalidInput:
        return InvalidInput(f"{self.path} holds {len(self.repositories):,} repositories; say which one by --partition "
                            f"NAME, see compactlib inspect {self.path}")

    def planned(self) -> Any:
        """Refused: which repository?"""
        raise self._which()

    def chosen(self, plan: Any) -> tuple[list[Any], dict[str, list[str]]]:
        """There is no plan of all."""
        raise NotImplementedError

    def compacted(self) -> Any:
        """Refused: which repository?"""
        raise self._which()

    def verified(self) -> VerifyReport:
        """The key-value store itself: each row by its checksum."""
        with self.reading() as store:
            store.audit()
            sizes = [len(entry.key) + len(entry.value) for name in store.partitions() for entry in store.scan(name)]
        return VerifyReport((), len(sizes), sum(sizes))


def store_in(asked: Asked) -> KVStoreAt:
    """Return the repository that an SQLite file holds, or the one that was asked for.

    Raises:
        NotFound: it does not hold that one.
        Unsupported: it holds none.
        CompactlibError: the file cannot be read, or is no key-value store of the library's.
    """
    wanted = None if asked.partition is None else asked.partition.encode("utf-8", "surrogateescape")
    with contextlib.closing(SqliteStore(asked.path, read_only=True)) as store:
        found = [partition for partition in store.partitions()
                 if wanted in (None, partition) and repository_in(partition) is not None]
    if len(found) == 1:
        return RepositoryAt(asked, found[0])
    if wanted is not None:
        raise NotFound(f"{asked.path} holds no repository in a partition {asked.partition!r}; see compactlib inspect "
                       f"{asked.path}")
    if not found:
        raise Unsupported(f"{asked.path} is a key-value store without a staging repository; the commands look after "
                          f"no other store in an SQLite file")
    return SqliteFileAt(asked, [RepositoryAt(asked, partition) for partition in found])
