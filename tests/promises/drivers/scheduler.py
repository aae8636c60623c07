# SPDX-License-Identifier: Apache-2.0
"""Drivers of schedulers: over a log in a key-value store, and over a log in a folder.

Each added block has one row of the same name. A job's output has the rows of its sources, so that at any time each row
must be in exactly one block of the index. Workers are in the journal, with the answers to their polls.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

import attrs

from compactlib.commandlog import KVLog, TakenOver
from compactlib.errors import Closed, CompactlibError, Rejected
from compactlib.kv import MemoryStore, OutcomeUnknown, SnapshotStore
from compactlib.raftlog import LocalLog, LogOptions, SegmentLimits
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    Requeue,
    Retain,
    Scheduler,
    SchedulerConfig,
    StatusUpdate,
)
from compactlib.testing import Driver, HostLock, Journal, World
from tests.promises.drivers.denied import Denied

AnswerT = TypeVar("AnswerT")

HOURS = 3600.0
SPAN = 6 * HOURS
PLAIN = attrs.evolve(MemoryStore().limits, max_transact=4)
PLACE: dict[str, Any] = {"tenant": "A", "shard": 0}


@attrs.frozen
class Added:
    """Blocks added in one command, with equal times."""

    blocks: tuple[str, ...]
    time: float


@attrs.frozen
class Told:
    """The scheduler's report on added blocks."""

    kept: tuple[str, ...]


@attrs.frozen
class Lease:
    """A job that a worker got."""

    name: str
    token: int
    until: float
    level: int
    sources: tuple[str, ...]
    times: tuple[float, float]


@attrs.frozen
class Report:
    """A worker's report on its job; `output` is the block that it wrote."""

    lease: Lease
    status: str

    @property
    def output(self) -> str:
        return f"{self.lease.name}@{self.lease.token}"

    @property
    def replaces(self) -> bool:
        return self.status in ("merged", "empty")


@attrs.frozen
class Polled:
    """One poll of a worker."""

    reports: tuple[Report, ...]
    capacity: int
    confirmed: tuple[str, ...]


@attrs.frozen
class Answered:
    """The answer to a poll: the accepted reports, the worker's jobs, the tombstones to delete."""

    opening: int
    term: int
    now: float
    delay: float
    reports: tuple[tuple[Report, bool], ...]
    leases: tuple[Lease, ...]
    tombstones: tuple[Any, ...]


@attrs.frozen
class Retained:
    """Retention: blocks before a time are deleted."""

    before: float


@attrs.frozen
class Upkeep:
    """A checkpoint, or a requeue of jobs, which changes no row."""

    kind: str


@attrs.frozen
class Settings:
    """The settings of an opening."""

    config: SchedulerConfig
    snapshot_every: int


BASE = SchedulerConfig(
    levels=(LevelConfig(max_blocks=2, max_age_seconds=30), LevelConfig(max_blocks=2)), lease_seconds=15.0,
    max_failures=1, max_queue_size=2, backoff_seconds=1.0, cleanup_delay_seconds=5.0, cleanup_lease_seconds=20.0)


class Opened:
    """A scheduler with its clock."""

    def __init__(self, host: Scheduler, world: World, number: int) -> None:
        self.host, self.clock, self.close, self.number = host, world.clock, host.close, number
        self.kept = world.kept
        self.deleting = HostLock()


class SchedulerDriver(Driver[Opened]):
    """The acts and checks of both schedulers: blocks, workers, retention, quarantine and clean-up."""

    def settings(self) -> Sequence[Settings]:
        return [Settings(BASE, 6),
                Settings(attrs.evolve(BASE, max_queue_size=1, lease_seconds=1.0, max_jobs_per_poll=1,
                                      cleanup_batch_size=0), 1),
                Settings(attrs.evolve(BASE, levels=(LevelConfig(max_blocks=3, max_age_seconds=5), *BASE.levels[1:]),
                                      max_failures=0, cleanup_delay_seconds=0.0), 1000)]

    def act(self, store: Opened, rng: Random, journal: Journal) -> None:
        store.clock.advance(rng.choice([0.0, 1.0, 20.0]))
        kinds = ["add", "work", "work", "work", "again", "requeue", "retain", "checkpoint"]
        kind = rng.choice(kinds if _tried(journal, Added) else ["add"])
        if kind == "add":
            self._add(store, _new_blocks(rng), journal)
        elif kind == "again":
            with store.deleting:  # a writer's retry; after a worker has deleted a block, writers do not retry
                deleted = {block for tombstone in _tombstones(journal) for block in tombstone.blocks}
                earlier = [added for added in _tried(journal, Added) if not deleted & set(added.blocks)]
                self._add(store, rng.choice(earlier or [_new_blocks(rng)]), journal)
        elif kind == "work":
            # The first poll plans, the next assigns, and a later poll reports.
            for _ in range(rng.randint(2, 5)):
                self._poll(store, rng, journal, capacity=rng.choice([0, 2, 2]))
                store.clock.advance(rng.choice([0.0, 0.0, 6.0]))
        elif kind == "retain":
            retained = Retained(rng.randrange(3) * SPAN)
            self._carry_out(store, Retain(retained.before), retained, journal)
        elif kind == "requeue":
            names = store.host.read(lambda service: [job.plan.name for job in service.quarantine.values()])
            names += [lease.name for lease in _leases(journal)[-2:]]
            self._carry_out(store, Requeue(tuple(dict.fromkeys(names))), Upkeep(kind), journal)
        else:
            with journal.trying(Upkeep(kind)):
                store.host.snapshot()

    def _add(self, store: Opened, added: Added, journal: Journal) -> None:
        blocks = AddBlocks(tuple(BlockMeta(id=block, level=0, min_time=added.time, max_time=added.time, **PLACE)
                                 for block in added.blocks))
        result = self._carry_out(store, blocks, added, journal)
        with journal.trying(Told((*result.queued, *result.terminal, *result.duplicate))):
            pass

    def _poll(self, store: Opened, rng: Random, journal: Journal, *, capacity: int) -> None:
        # Two workers: one has these jobs, the other may have had them before, and is late.
        leases, ended = _leases(journal), {report.lease for report in _reports(journal) if report.status != "renewed"}
        held = [lease for lease in leases if lease not in ended][-2:]
        late = rng.sample(leases, min(len(leases), 1)) if rng.random() < 0.3 else []
        kinds = ["merged"] * 6 + ["empty", "failed", "released", "renewed"]
        reports = tuple(Report(lease, rng.choice(kinds)) for lease in [*held, *late])
        confirmed = tuple({tombstone.name: None for tombstone in _tombstones(journal)[-2:]}) * rng.randrange(2)
        polled = Polled(reports, capacity, confirmed)
        request = PollRequest(tuple(map(_update, reports)), capacity, confirmed)
        with store.deleting if confirmed else contextlib.nullcontext():
            answer = self._tried(store, lambda: store.host.poll(request), polled, journal)
        given = {assignment.name: assignment for assignment in answer.assignments}
        taken = tuple(Lease(plan.name, given[plan.name].token, given[plan.name].lease_expires_at,
                            plan.compaction_level, plan.source_blocks, _times(given[plan.name].blocks))
                      for plan in answer.compaction_jobs)
        delay = store.host.read(lambda service: service.config.cleanup_delay_seconds)
        said = tuple(zip(reports, (one.verdict.name == "ACCEPTED" for one in answer.answers), strict=True))
        with journal.trying(Answered(store.number, store.host.term, answer.now, delay, said, taken,
                                     answer.tombstones)):
            pass

    def _carry_out(self, store: Opened, operation: Any, change: object, journal: Journal) -> Any:
        return self._tried(store, lambda: _apply(store.host, operation), change, journal)

    def _tried(self, store: Opened, call: Callable[[], AnswerT], change: object, journal: Journal) -> AnswerT:
        try:
            with journal.trying(change):
                return call()
        except CompactlibError as error:
            is_taken_over = store.kept["openings"] > store.number
            assert is_taken_over or not isinstance(error, TakenOver), "nobody has taken it over"
            if self._means_unchanged(error):
                with journal.trying(Denied(change)):
                    pass
            raise

    def _means_unchanged(self, error: CompactlibError) -> bool:
        """Return whether the scheduler promises that a call with this error changed nothing."""
        raise NotImplementedError

    def check(self, store: Opened, journal: Journal, *, damage: str) -> None:
        index, tombstones, unaccounted = store.host.read(lambda service: (
            list(service.index.blocks()),
            [entry.tombstone for entry in service.tombstones],
            [block.id for block in service.unaccounted_blocks()]))
        ledger = Ledger(journal)
        there = Counter(row for block in index for row in ledger.rows(block.id))
        for row, count in there.items():
            assert count == 1, f"row {row} is in {count} blocks"
            assert row not in ledger.gone, f"row {row} is back"
        for row in ledger.kept if damage != "cut" else ():
            assert there[row] or row in ledger.doubtful, f"row {row} is gone"
        for batch in ledger.batches:
            found = [row for row in batch if there[row]]
            assert len(found) in (0, len(batch)) or set(batch) & (ledger.doubtful | ledger.gone), f"half of {batch}"
        for tombstone in (*tombstones, *ledger.tombstones):
            wrong = [block.id for block in index if block.id in tombstone.blocks]
            assert not wrong, f"{wrong} are in the index and to be deleted by {tombstone}"
        for block in index:
            assert block.id not in ledger.refused, f"{block.id} is in the index, and its job was refused"
            assert block.id not in ledger.replaced or damage == "cut", f"{block.id} was replaced, and is back"
        confirmed = {one.name for one in tombstones} & ledger.confirmed
        assert not confirmed or damage == "cut", f"{confirmed} were confirmed, and are to be deleted again"
        assert not unaccounted, f"{unaccounted} are in no job and in no queue"


class KVSchedulerDriver(SchedulerDriver):
    """A scheduler in a key-value store with the fewest features: it compares values, and changes a few keys at once."""

    def open(self, world: World, settings: Settings) -> Opened:
        number = world.kept["openings"] = world.kept.get("openings", 0) + 1
        kv, rng = world.keyed("scheduler", lambda: MemoryStore(predicates="value", limits=PLAIN)), Random(number)
        log = KVLog(kv, clock=world.clock, rng=rng)
        return Opened(Scheduler(log, SnapshotStore(kv, clock=world.clock, rng=rng), settings.config,
                                snapshot_every=settings.snapshot_every), world, number)

    def _means_unchanged(self, error: CompactlibError) -> bool:
        return not isinstance(error, OutcomeUnknown | Closed)


class LocalSchedulerDriver(SchedulerDriver):
    """A scheduler over a log in a folder, with snapshots in a key-value store."""

    def open(self, world: World, settings: Settings) -> Opened:
        number = world.kept["openings"] = world.kept.get("openings", 0) + 1
        kv = world.keyed("snapshots", lambda: MemoryStore(predicates="value"))
        log = LocalLog(world.folder, LogOptions(limits=SegmentLimits(max_entries=3), clock=world.clock,
                                                files=world.files, keep_links_seconds=0.0))
        return Opened(Scheduler(log, SnapshotStore(kv, clock=world.clock, rng=Random(number)), settings.config,
                                snapshot_every=settings.snapshot_every), world, number)

    def _means_unchanged(self, error: CompactlibError) -> bool:
        return isinstance(error, Rejected)


def _apply(host: Scheduler, operation: AddBlocks | Retain | Requeue) -> Any:
    match operation:
        case AddBlocks(blocks=blocks):
            return host.add_blocks(blocks)
        case Retain(before=before):
            return host.retain(before)
        case Requeue(names=names):
            return host.requeue(names)


class Ledger:
    """The expected state of each row, from a journal.

    Attributes:
        kept: rows that were acknowledged.
        doubtful: rows that may be deleted: by an unanswered report of a job without output, or by retention.
        gone: rows that were never accepted, or that an accepted job without output has deleted.
        batches: rows that were added in one command.
        times: of each row.
        sources: of each block that a worker has written.
        replaced: source blocks of accepted jobs.
        refused: outputs of jobs whose completion was not accepted.
        tombstones: the tombstones that workers got.
        confirmed: the names of the tombstones whose deletion was confirmed.
    """

    def __init__(self, journal: Journal) -> None:
        self.kept, self.doubtful, self.gone = set[str](), set[str](), set[str]()
        self.replaced, self.refused, self.confirmed = set[str](), set[str](), set[str]()
        self.batches: list[tuple[str, ...]] = []
        self.times: dict[str, float] = {}
        self.sources: dict[str, tuple[str, ...]] = {}
        # The order of notes of several threads is unknown; only the content of a note, and the order of tokens, count.
        answers, added, denied = _tried(journal, Answered), Counter[Added](), Counter[Added]()
        reported = _reports(journal)
        for change in journal.changes:
            match change.what:
                case Added(blocks=blocks, time=time) as one:
                    added[one] += 1
                    self.batches.append(blocks)
                    self.times.update(dict.fromkeys(blocks, time))
                case Told(kept=kept):
                    self.kept |= set(kept)
                case Denied(what=Added() as one):
                    denied[one] += 1
                case Polled(confirmed=confirmed) if change.acknowledged:
                    self.confirmed |= set(confirmed)
        self.sources.update((one.output, one.lease.sources) for one in reported if one.status == "merged")
        self.gone |= {row for one in added if added[one] == denied[one] for row in one.blocks}
        self.doubtful |= {row for one in reported if one.status == "empty" for row in self.rows_of(one.lease.sources)}
        for retained in _tried(journal, Retained):
            self.doubtful |= {row for row, time in self.times.items() if time < retained.before}
        self._read(reported, answers)
        self.tombstones = _tombstones(journal)
        opened = {answered.term: answered.opening for answered in answers}
        assert all(opened[one.term] == one.opening for one in answers), f"two openings have one term: {opened}"
        _require_one_holder(reported, answers)
        _require_delay(answers)

    def rows(self, block: str) -> Iterator[str]:
        """Return the rows of a block."""
        if block in self.times:
            yield block
            return
        assert block in self.sources, f"nobody has written block {block}"
        yield from self.rows_of(self.sources[block])

    def rows_of(self, blocks: Sequence[str]) -> Iterator[str]:
        """Return the rows of some blocks."""
        for block in blocks:
            yield from self.rows(block)

    def _read(self, reported: Sequence[Report], answers: Sequence[Answered]) -> None:
        refused = Counter[str]()
        for report, accepted in [said for answered in answers for said in answered.reports]:
            if accepted and report.replaces:
                self.replaced |= set(report.lease.sources)
                self.gone |= set(self.rows_of(report.lease.sources) if report.status == "empty" else ())
            elif report.status == "merged":
                refused[report.output] += 1
        # A report of every other job was accepted, or has no answer.
        tried = Counter(report.output for report in reported if report.status == "merged")
        self.refused |= {output for output in refused if refused[output] == tried[output]}


def _require_one_holder(reported: Sequence[Report], answers: Sequence[Answered]) -> None:
    given = sorted(((lease.name, lease.token, answered, lease) for answered in answers for lease in answered.leases),
                   key=lambda one: one[:2])
    tokens = [{lease.token for lease in answered.leases} for answered in answers]
    assert sum(map(len, tokens)) == len(set().union(*tokens)), "one token is given twice"
    ended = {report.lease for report in reported if report.status != "renewed"}
    for (name, _, before, lease), (other, _, after, _) in itertools.pairwise(given):
        # A clock that goes back cuts the rest of a lease or a delay.
        if name == other and before.term == after.term and before.now <= after.now and lease not in ended:
            assert after.now > lease.until, f"{name} is given to two workers at once"


def _require_delay(answers: Sequence[Answered]) -> None:
    replaced = {source: answered for answered in answers for report, accepted in answered.reports
                if accepted and report.replaces for source in report.lease.sources}
    for answered in answers:
        for block in (block for tombstone in answered.tombstones for block in tombstone.blocks):
            left = replaced.get(block)
            if left is not None and left.term == answered.term and left.now <= answered.now:
                assert answered.now >= left.now + left.delay, f"{block} is to be deleted too early"


def _new_blocks(rng: Random) -> Added:
    return Added(tuple(f"{rng.getrandbits(40):010x}.{number}" for number in range(rng.randint(2, 5))),
                 rng.randrange(4) * SPAN + rng.randrange(6) * HOURS)


KindT = TypeVar("KindT")


def _tried(journal: Journal, kind: type[KindT]) -> list[KindT]:
    return [change.what for change in journal.changes if isinstance(change.what, kind)]


def _leases(journal: Journal) -> list[Lease]:
    return [lease for answered in _tried(journal, Answered) for lease in answered.leases]


def _reports(journal: Journal) -> list[Report]:
    return [report for polled in _tried(journal, Polled) for report in polled.reports]


def _tombstones(journal: Journal) -> list[Any]:
    return [tombstone for answered in _tried(journal, Answered) for tombstone in answered.tombstones]


def _times(blocks: Sequence[BlockMeta]) -> tuple[float, float]:
    return (min((block.min_time or 0.0 for block in blocks), default=0.0),
            max((block.max_time or 0.0 for block in blocks), default=0.0))


def _update(report: Report) -> StatusUpdate:
    lease = report.lease
    if not report.replaces:
        status = {"failed": JobStatus.FAILED, "released": JobStatus.RELEASED, "renewed": JobStatus.IN_PROGRESS}
        return StatusUpdate(lease.name, lease.token, status[report.status])
    merged = report.status == "merged"
    first, last = lease.times
    output = BlockMeta(id=report.output, level=lease.level + 1, min_time=first, max_time=last, **PLACE)
    return StatusUpdate(lease.name, lease.token, JobStatus.SUCCESS, CompactedBlocks(
        source_blocks=lease.sources, new_blocks=(output,) if merged else (),
        no_output=None if merged else NoOutput.EMPTY, **PLACE))
