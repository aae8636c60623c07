# SPDX-License-Identifier: Apache-2.0
"""Stores in an SQLite file for the commands: a repository, a scheduler, a catalog; and a file that holds several.

The file is opened for reading alone, beside its owners; `compact` alone opens it for writing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from compactlib.app.stores import Asked, StoreAt
from compactlib.app.terminal import Answer, progress_bar
from compactlib.catalog import CatalogPlan, CatalogService, HybridClock, UpdateLog
from compactlib.catalog.log import keys
from compactlib.catalog.model.timestamp import to_seconds
from compactlib.clock import SystemClock
from compactlib.errors import AuditFailed, CorruptData, InvalidInput, NotFound, Unsupported
from compactlib.files.disk import list_folder
from compactlib.kv import SqliteStore
from compactlib.kv.snapshots import HEAD_KEY
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.objects.local import is_local_objects
from compactlib.outcome import Outcome
from compactlib.report import Finding, PolicyRecord, Printed, Table, VerifyReport
from compactlib.runtime.budget import Budget
from compactlib.scheduler import ByPriority, FairTenants, JobPlan, PollRequest, SmallestFirst
from compactlib.scheduler.model.values import Command, JobPhase
from compactlib.scheduler.service.machine import SchedulerMachine
from compactlib.scheduler.service.store import JOURNAL, stored_machine
from compactlib.staging import AlwaysPolicy, CommittedRanges, Repository, StagingPlan, TombstoneCostPolicy
from compactlib.staging.committed.formats.metarange import MetaRange
from compactlib.staging.committed.formats.split import SplitRule
from compactlib.staging.model.names import repository_partition
from compactlib.staging.records.status import RepositorySurvey

_REPOSITORY = b"staging/"
_MAX_JOBS = 1000


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
        return self.partition.removeprefix(_REPOSITORY).decode("ascii")

    def _survey(self) -> RepositorySurvey:
        """What the records alone say, wherever the ranges are."""
        nothing = CommittedRanges(MemoryObjects())
        with self.reading() as store, Repository(store, nothing, name=self._name) as repository:
            return repository.survey()

    @contextlib.contextmanager
    def _opened(self, store: SqliteStore, *, writes: bool = False) -> Iterator[Repository]:
        objects = LocalObjects(self._objects())
        found = CommittedRanges(objects)
        with Repository(store, found, name=self._name) as repository:
            base = self._base(repository, found)
        # A range in Parquet is written anew as one, so that what reads them beside the library finds all.
        as_written = found.files.format_of(base.entries[0]) if writes and base.entries else None
        with Repository(store, CommittedRanges(objects, rule=base.rule, range_format=as_written), name=self._name,
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

    def _base(self, repository: Repository, found: CommittedRanges) -> MetaRange:
        """A metarange of the repository: the rule by which ranges are cut must not change."""
        context = repository.context
        for branch in context.branches.list():
            base = branch.record.compacted_metarange_id or context.commits.metarange_of(branch.record.commit_id)
            if base is not None:
                return found.files.read_metarange(base, SplitRule())
        return MetaRange(SplitRule(), ())

    @property
    def _policy(self) -> AlwaysPolicy | TombstoneCostPolicy:
        return TombstoneCostPolicy() if self.asked.policy == "tombstone_cost" else AlwaysPolicy()

    @property
    def _branch(self) -> str:
        return self.asked.branch or "main"

    def inspect(self) -> Answer:
        """One row a branch."""
        survey = self._survey()
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

    def compacted(self) -> Outcome[Any]:
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


class CatalogAt(KVStoreAt):
    """The log of a catalog. What its nodes need they alone know, so nothing is ever cut here."""

    kind = "catalog log"

    @contextlib.contextmanager
    def _opened(self) -> Iterator[CatalogService]:
        with self.reading() as store, CatalogService(UpdateLog(store, self.partition),
                                                     HybridClock(SystemClock())) as service:
            yield service

    def inspect(self) -> Answer:
        """One row a version."""
        with self._opened() as service:
            view = service.view()
        sizes = {} if view.sizes is None else view.sizes.records
        rows = [{"version": each.version, "committed": to_seconds(each.commit),
                 "active_from": to_seconds(each.activation), "record_bytes": sizes.get(each.version)}
                for each in view.history]
        history = view.history
        title = (f"{self.path}: versions {history.earliest} to {history.latest} are retained, in "
                 f"{sum(sizes.values()):,} bytes")
        return Answer({"path": self.path, "earliest": history.earliest, "latest": history.latest, "versions": rows},
                      (Table.from_dicts(rows, title=title),))

    def planned(self) -> CatalogPlan:
        """Without the reports of the nodes: which gate is shut."""
        with self._opened() as service:
            return service.plan()

    def chosen(self, plan: CatalogPlan) -> tuple[list[Any], dict[str, list[str]]]:
        """The version cut to, and what keeps it from being higher."""
        return ([] if plan.target is None else [plan.target]), {str(limit): [] for limit in plan.explanation.limits}

    def compacted(self) -> Outcome[Any]:
        """Skipped, since the nodes' needs are not known here, and so nothing is written."""
        with self._opened() as service:
            return service.compact()

    def verified(self) -> VerifyReport:
        """The whole log."""
        with self._opened() as service:
            return service.verify()


@attrs.frozen(kw_only=True, repr=False)
class NextPoll(Printed):
    """Which jobs the next poll would give out.

    Attributes:
        jobs: their plans.
        policy: which chose.
        why: by what rule, or which gate is shut.
    """

    jobs: tuple[JobPlan, ...]
    policy: PolicyRecord
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self.jobs

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a job."""
        return [{"job": job.name, "level": job.compaction_level, "tenant": job.tenant, "shard": job.shard,
                 "blocks": len(job.source_blocks), "size_bytes": job.size_bytes} for job in self.jobs]

    def _summary(self) -> str:
        return f"the next poll gets {len(self.jobs):,} jobs: {self.why}"


class SchedulerAt(KVStoreAt):
    """A scheduler that keeps its state in the file. Its workers do the compacting."""

    kind = "scheduler"

    def _machine(self) -> SchedulerMachine:
        with self.reading() as store:
            return stored_machine(store, self.partition)

    def inspect(self) -> Answer:
        """One row a level, one row a job."""
        now = SystemClock().now()
        service = self._machine().service
        levels, jobs, given_up = service.stats(now), service.table(now), service.quarantine()
        data = {"path": self.path, "applied_index": service.state.applied_index, "levels": levels,
                "jobs": jobs.to_dicts(), "quarantine": [each.plan.name for each in given_up],
                "tombstones": len(service.state.tombstones)}
        rows = [{name: row[name] for name in ("level", *(phase.value for phase in JobPhase), "completed")}
                for row in levels]
        title = (f"{self.path}: {len(jobs.rows):,} jobs, {len(given_up):,} given up, "
                 f"{len(service.state.tombstones):,} tombstones, after command {service.state.applied_index:,}")
        return Answer(data, (Table.from_dicts(rows, title=title), "", jobs))

    def planned(self) -> NextPoll:
        """What a worker with room for everything would get now."""
        policy = self.policy_of((ByPriority(), SmallestFirst(), FairTenants()))
        machine = self._machine()
        state = machine.service.state
        term = 0 if state.applied is None else state.applied.term
        machine.service.policy = policy
        update = machine.service.prepare(Command(state.applied_index + 1, term, SystemClock().now()),
                                         PollRequest(job_capacity=_MAX_JOBS))
        jobs = tuple(machine.service.job(each.state.name)[1] for each in update.assigned_jobs)
        return NextPoll(jobs=jobs, policy=PolicyRecord.of(policy), why=update.why)

    def chosen(self, plan: NextPoll) -> tuple[list[Any], dict[str, list[str]]]:
        """Names of jobs."""
        return [job.name for job in plan.jobs], {}

    def compacted(self) -> Outcome[Any]:
        """Refused: its workers do that."""
        raise InvalidInput(f"{self.path} is a {self.kind}, which rewrites nothing itself: start a Worker that polls "
                           f"it; compactlib plan says what the next poll would get")

    def verified(self) -> VerifyReport:
        """The snapshot, the journal, and the state that they give."""
        with self.reading() as store, store.scan(self.partition) as entries:
            sizes = [len(entry.key) + len(entry.value) for entry in entries]
        try:
            self._machine().service.audit()
        except (CorruptData, AuditFailed, Unsupported) as error:
            kind = "format" if isinstance(error, Unsupported) else "damage"
            return VerifyReport((Finding(kind, self.path, str(error), error),), len(sizes), sum(sizes))
        return VerifyReport((), len(sizes), sum(sizes))


class SqliteFileAt(KVStoreAt):
    """A file with several stores; they are looked at one by one."""

    kind = "file of several stores"

    def __init__(self, asked: Asked, stores: Sequence[KVStoreAt]) -> None:
        super().__init__(asked)
        self.stores = stores

    def inspect(self) -> Answer:
        """One row a store."""
        rows = [{"partition": store.partition.decode(errors="backslashreplace"), "kind": store.kind}
                for store in self.stores]
        title = f"{self.path}: {len(rows):,} stores; look at one by --partition NAME"
        return Answer({"path": self.path, "stores": rows}, (Table.from_dicts(rows, title=title),))

    def _which(self) -> InvalidInput:
        return InvalidInput(f"{self.path} holds {len(self.stores):,} stores; say which one by --partition NAME, see "
                            f"compactlib inspect {self.path}")

    def planned(self) -> Any:
        """Refused: which store?"""
        raise self._which()

    def chosen(self, plan: Any) -> tuple[list[Any], dict[str, list[str]]]:
        """There is no plan of all."""
        raise NotImplementedError

    def compacted(self) -> Outcome[Any]:
        """Refused: which store?"""
        raise self._which()

    def verified(self) -> VerifyReport:
        """The key-value store itself: each row by its checksum."""
        with self.reading() as store:
            store.audit()
            sizes = [len(entry.key) + len(entry.value) for name in store.partitions() for entry in store.scan(name)]
        return VerifyReport((), len(sizes), sum(sizes))


def store_in(asked: Asked) -> KVStoreAt:
    """The store that an SQLite file holds, or the one that was asked for.

    Raises:
        NotFound: it does not hold that one.
        Unsupported: it holds none.
        CompactlibError: the file cannot be read, or is no key-value store of the library's.
    """
    wanted = None if asked.partition is None else asked.partition.encode("utf-8", "surrogateescape")
    with contextlib.closing(SqliteStore(asked.path, read_only=True)) as store:
        found = [(kind, partition) for partition in store.partitions()
                 if wanted in (None, partition) and (kind := _kind_in(store, partition)) is not None]
    if len(found) == 1:
        kind, partition = found[0]
        return kind(asked, partition)
    if wanted is not None:
        raise NotFound(f"{asked.path} holds no store in a partition {asked.partition!r}; see compactlib inspect "
                       f"{asked.path}")
    if not found:
        raise Unsupported(f"{asked.path} is a key-value store with no repository, scheduler or catalog in it, and "
                          f"those are what this command looks at")
    return SqliteFileAt(asked, [kind(asked, partition) for kind, partition in found])


def _kind_in(store: SqliteStore, partition: bytes) -> type[RepositoryAt | CatalogAt | SchedulerAt] | None:
    if _is_of_a_repository(partition):
        return RepositoryAt
    if _holds(store, partition, keys.FORMAT):
        return CatalogAt
    return SchedulerAt if _holds(store, partition, HEAD_KEY) and _holds(store, partition, JOURNAL) else None


def _is_of_a_repository(partition: bytes) -> bool:
    try:
        return repository_partition(partition.removeprefix(_REPOSITORY).decode("ascii", "replace")) == partition
    except InvalidInput:
        return False


def _holds(store: SqliteStore, partition: bytes, prefix: bytes) -> bool:
    with store.scan(partition, prefix=prefix, page_size=1) as entries:
        return next(entries, None) is not None
