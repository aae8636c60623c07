# SPDX-License-Identifier: Apache-2.0
"""Random worlds of stored schedulers: stores that refuse, lose answers and crash, clocks that are off at each opening,
other settings at each opening and in between, policies and observers that raise, owners that wake up late, leaders that
change in the middle of a poll.

Every block that is added holds one row, and what a job writes holds the rows of its sources. So at any time: each row
that was acknowledged is in exactly one block of the index, what was given out for deletion is in none, a completion
that was accepted has happened, no late token is, tokens ascend, and who opens again finds what was there before.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed, Closed, CompactlibError, CorruptData, InvalidInput, Stale
from compactlib.hosting import LocalLog, LogBroken, NoAnswer, NotLeader, PollAgain, SchedulerHost
from compactlib.kv import MemoryStore
from compactlib.outcome import Skipped
from compactlib.raftlog import LogOptions, SegmentLimits
from compactlib.runtime import Observer
from compactlib.scheduler import (
    AssignmentPolicy,
    AssignmentView,
    BlockMeta,
    ByPriority,
    Command,
    CompactedBlocks,
    Configure,
    FairTenants,
    JobChoice,
    JobPlan,
    JobStatus,
    LevelConfig,
    PollRequest,
    Requeue,
    SchedulerConfig,
    SchedulerService,
    SmallestFirst,
    StatusUpdate,
    StoredScheduler,
)
from compactlib.scheduler.errors import JournalConflict
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import Operation
from compactlib.scheduler.model.values import BlockTombstones, Tombstone
from compactlib.scheduler.persistence.state_rows import dump_rows
from tests.harness.effort import Effort
from tests.harness.faulty_store import FaultyStore, KVCrash, KVFault, KVOperation

FAULTS = [fault for fault in KVFault if fault is not KVFault.CONFLICT]
MEANWHILE = [fault for fault in FAULTS if fault not in (KVFault.CRASH_BEFORE, KVFault.CRASH_AFTER)]
STATUSES = [JobStatus.SUCCESS] * 3 + [JobStatus.IN_PROGRESS, JobStatus.FAILED, JobStatus.RELEASED]
Key = tuple[str, int, str]


class Deaf(Observer):
    """Raises whatever it is told."""

    def event(self, name: str, fields: object) -> None:
        raise KeyError(name)

    def count(self, name: str, value: int = 1, labels: object = None) -> None:
        raise KeyError(name)

    def measure(self, name: str, value: float, labels: object = None) -> None:
        raise KeyError(name)


@attrs.frozen
class Raising:
    """A policy that raises now and then."""

    rng: random.Random
    name: str = "raising"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        if self.rng.random() < 0.2:
            raise ZeroDivisionError
        return ByPriority().choose(view, now)


def settings(rng: random.Random) -> SchedulerConfig:
    return SchedulerConfig(
        levels=tuple(LevelConfig(max_blocks=rng.randint(1, 3), max_age_seconds=rng.choice([0.0, 5.0, 40.0]),
                                 max_range_seconds=rng.choice([0.0, 6.0])) for _ in range(rng.randint(1, 3))),
        max_failures=rng.randint(0, 3), lease_seconds=rng.choice([1.0, 10.0, 60.0]),
        max_queue_size=rng.choice([0, 2, 4]),
        max_quarantine_size=rng.randint(1, 3), max_jobs_per_poll=rng.randint(1, 5), max_releases=rng.randint(0, 3),
        last_key=rng.choice(["age", "name"]), backoff_seconds=rng.choice([0.0, 3.0]),
        max_backoff_seconds=rng.choice([0.0, 10.0]), cleanup_batch_size=rng.randint(0, 3),
        cleanup_delay_seconds=rng.choice([0.0, 15.0, 1e6]), cleanup_lease_seconds=rng.choice([0.0, 20.0]),
        standalone_cleanup=rng.random() < 0.5, evict_at_limit=rng.random() < 0.5, strict_states=rng.random() < 0.6)


class World:
    """Workers, an operator and a model, around a scheduler that is opened again and again."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.kv = MemoryStore()
        if self.rng.random() < 0.3:
            self.kv = MemoryStore(limits=attrs.evolve(self.kv.limits, max_transact=0))
        self.chance = self.rng.choice([0.0, 0.02, 0.1])
        self.config = settings(self.rng)
        self.now = 1e6
        self.blocks = itertools.count(1)
        self.rows: dict[Key, frozenset[int]] = {}
        self.acknowledged: set[int] = set()
        # What may be gone: a tombstone was given out, and nobody has written it since the deletion was over.
        self.deleted: set[Key] = set()
        self.written: set[tuple[Key, int]] = set()
        self.deleting: dict[str, set[Key]] = {}
        self.held: list[tuple[JobPlan, int]] = []
        self.tokens: dict[str, int] = {}
        self.unconfirmed: list[Tombstone] = []
        self.accepted = 0
        self.open()

    # -- who has it

    def fault(self, _: KVOperation) -> KVFault | None:
        return self.rng.choice(FAULTS) if self.rng.random() < self.chance else None

    def policy(self) -> AssignmentPolicy | None:
        return self.rng.choice([None, FairTenants(), SmallestFirst(), ByPriority(higher_level_share=0.5),
                                Raising(self.rng)])

    def open(self) -> None:
        if self.rng.random() < 0.5:
            self.config = settings(self.rng)
        self.clock = ManualClock(self.now + self.rng.choice([0, 0, 0, 30, -30, 4000, 86400, -86400]))
        while True:
            self.faulty = FaultyStore(self.kv, self.fault)
            try:
                self.scheduler: Any = self.made()
                return
            except KVCrash:
                continue
            except CompactlibError as error:
                assert not isinstance(error, WRONG), repr(error)

    def made(self) -> Any:
        given: dict[str, Any] = {"policy": self.policy(), "observer": Deaf(), "clock": self.clock,
                                 "rng": random.Random(self.rng.random())}
        every = self.rng.choice([1, 3, 20])
        if self.folder is None:
            return StoredScheduler(self.faulty, self.config, checkpoint_every=every, **given)
        log = LocalLog(self.folder, LogOptions(limits=SegmentLimits(max_entries=8), clock=self.clock, observer=Deaf()))
        try:
            return SchedulerHost(log, self.faulty, self.config, snapshot_every=every, **given)
        except BaseException:
            log.close()
            raise

    def reopen(self, *, crash: bool) -> None:
        before = None if crash else self.tried(self.picture)
        former, store = self.scheduler, self.faulty
        if not crash or self.folder is not None:
            with contextlib.suppress(KVCrash):
                former.close()
        self.open()
        if before is not None:
            after = self.tried(self.picture)
            assert after is None or after[0] != before[0] or after == before, "opened again, it is another"
        if crash and self.folder is None:
            woken = None
            with contextlib.suppress(CompactlibError, KVCrash, ZeroDivisionError):
                woken = former.poll(PollRequest((), 3))
            assert woken is None or not woken.compaction_jobs, "a former owner gives out jobs"
        store.settle()

    def picture(self) -> Any:
        return self.scheduler.look(lambda service: (service.config, list(dump_rows(service.state))[1:]))

    def tried(self, call: Callable[[], Any]) -> Any:
        """What a call returned, or `None`; who cannot go on is opened again."""
        try:
            return call()
        except ZeroDivisionError:
            return None
        except KVCrash:
            self.reopen(crash=True)
        except CompactlibError as error:
            assert isinstance(error, PollAgain) or not isinstance(error, (*WRONG, *GONE)), repr(error)
        return None

    # -- what happens

    def step(self) -> None:
        rng = self.rng
        self.clock.advance(rng.choice([0.0, 0.0, 0.5, 1.0, 5.0, 11.0, 31.0, 70.0]))
        self.now = max(self.now, self.clock.now())
        kind = rng.choices(["add", "poll", "requeue", "configure", "snapshot", "reopen"], [30, 60, 2, 2, 2, 4])[0]
        scheduler = self.scheduler
        if kind == "add":
            self.add()
        elif kind == "poll":
            self.poll()
        elif kind == "requeue":
            names = [plan.name for plan, _ in self.held[-3:]]
            self.tried(lambda: self.applied(Requeue(tuple(names)), lambda: scheduler.requeue(names)))
        elif kind == "configure":
            config = settings(rng)
            self.tried(lambda: self.applied(Configure(config), lambda: scheduler.configure(config)))
        elif kind == "snapshot":
            self.tried(getattr(scheduler, "checkpoint", None) or scheduler.snapshot)
        else:
            self.reopen(crash=rng.random() < 0.5)

    def applied(self, operation: Operation, call: Callable[[], object]) -> object:
        return self.scheduler.apply(operation) if isinstance(self.scheduler, StoredScheduler) else call()

    def add(self) -> None:
        numbers = [next(self.blocks) for _ in range(self.rng.randint(1, 4))]
        blocks = [BlockMeta(id=f"b{number}", tenant=self.rng.choice("AB"), shard=self.rng.randint(0, 1), level=0,
                            min_time=float(number), max_time=float(number)) for number in numbers]
        self.rows |= {key_of(block): frozenset({number}) for block, number in zip(blocks, numbers, strict=True)}
        if self.tried(lambda: self.scheduler.add_blocks(blocks)) is not None:
            self.acknowledged.update(numbers)

    def said(self, plan: JobPlan, token: int) -> StatusUpdate:
        status = self.rng.choice(STATUSES)
        if status is not JobStatus.SUCCESS:
            return StatusUpdate(plan.name, token, status)
        block = BlockMeta(id=f"{plan.name}@{self.rng.choice([str(token), 'same'])}", tenant=plan.tenant,
                          shard=plan.shard, level=plan.compaction_level + 1)
        rows = frozenset[int]().union(*(self.rows[plan.tenant, plan.shard, each] for each in plan.source_blocks))
        key = key_of(block)
        assert self.rows.setdefault(key, rows) == rows
        if (key, token) not in self.written:
            # An attempt writes it once, before it says so for the first time.
            self.written.add((key, token))
            if not any(key in keys for keys in self.deleting.values()):
                self.deleted.discard(key)
        return StatusUpdate(plan.name, token, status, CompactedBlocks(
            tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=(block,)))

    def poll(self) -> None:
        rng = self.rng
        about = rng.choices(self.held[-6:], k=rng.choice([0, 1, 1, 2, 3])) if self.held else []
        confirmed = [tombstone for tombstone in self.unconfirmed if rng.random() < 0.5]
        for tombstone in confirmed:
            # It has deleted what it confirms, whether that is heard or not.
            self.deleting.pop(tombstone.name, None)
        request = PollRequest(tuple(self.said(*each) for each in about), rng.randint(0, 3),
                              tuple(tombstone.name for tombstone in confirmed))
        response = self.tried(lambda: self.scheduler.poll(request))
        if response is None:
            return
        for update, answer in zip(request.status_updates, response.answers, strict=True):
            if answer.verdict is Verdict.ACCEPTED:
                assert update.token >= self.tokens[update.name], "a late token is accepted"
                if update.compacted_blocks is not None:
                    self.accepted += 1
                    self.see_completed(update.compacted_blocks)
        self.unconfirmed = [each for each in self.unconfirmed if each not in confirmed]
        tokens = {assignment.name: assignment.token for assignment in response.assignments}
        for plan in response.compaction_jobs:
            assert tokens[plan.name] > self.tokens.get(plan.name, 0)
            self.tokens[plan.name] = tokens[plan.name]
            self.held.append((plan, tokens[plan.name]))
        riding = itertools.chain.from_iterable(plan.tombstones for plan in response.compaction_jobs)
        for tombstone in (*response.tombstones, *riding):
            assert isinstance(tombstone, BlockTombstones)
            keys = {(tombstone.tenant, tombstone.shard, each) for each in tombstone.blocks}
            self.deleted |= keys
            self.deleting[tombstone.name] = keys
            self.unconfirmed.append(tombstone)

    def see_completed(self, done: CompactedBlocks) -> None:
        def at(service: SchedulerService) -> tuple[bool, ...]:
            ids = [done.new_blocks[0].id, *done.source_blocks]
            return tuple(service.state.index.get(done.tenant, done.shard, each) is not None  # type: ignore[union-attr]
                         for each in ids)

        seen = self.tried(lambda: self.scheduler.look(at))
        assert seen is None or seen == (True, *[False] * len(done.source_blocks)), "what was accepted has not happened"

    def check(self) -> None:
        def at(service: SchedulerService) -> tuple[list[Key], bool]:
            service.audit()
            state = service.state
            assert state.index is not None
            return [key_of(block) for block in state.index.blocks()], bool(
                state.unaccounted_blocks() and not state.quarantine_dropped)

        found = self.tried(lambda: self.scheduler.look(at))
        if found is not None:
            keys, has_forgotten = found
            rows = Counter(row for key in keys for row in self.rows[key])
            assert not [row for row, count in rows.items() if count > 1], "a row is in two blocks"
            assert self.acknowledged <= rows.keys(), "a row is lost"
            assert not self.deleted & {*keys}, "a block of the index was deleted"
            assert not has_forgotten, "a block waits for nothing"

    def end(self) -> None:
        self.chance = 0.0
        for crash in (False, True):
            self.reopen(crash=crash)
            for _ in range(3):
                # Until a clock that was off at the opening is believed.
                self.tried(lambda: self.scheduler.poll(PollRequest()))
                self.clock.advance(31.0)
            self.check()
        self.scheduler.close()


class Group:
    """An order of commands that three nodes share; `between` is what others do in the middle of a decision."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.entries: list[tuple[int, float, bytes | None]] = []
        self.nodes: list[Node] = []
        self.term = 0
        self.leader: Node | None = None
        self.between: Callable[[], None] = lambda: None

    def elect(self) -> None:
        self.leader, self.term = self.rng.choice(self.nodes), self.term + 1


class Node:
    """The `CommandLog` of one node, which answers at once, or, now and then, never; its clock is off by something."""

    def __init__(self, group: Group, clock: ManualClock, off: float) -> None:
        self.group = group
        self.clock = clock
        self.off = off
        self.index = 0
        self.machine: Any = None

    def start(self, machine: Any) -> None:
        self.machine, self.index = machine, machine.applied_index
        self.catch_up()

    def catch_up(self, until: int | None = None) -> Any:
        result = None
        for term, time, payload in self.group.entries[self.index:until]:
            self.index += 1
            result = None if payload is None else self.machine.apply(Command(self.index, term, time), payload)
        return result

    def append(self, payload: bytes | None) -> Command:
        if self.group.leader is not self:
            raise NotLeader(leader="")
        now = self.clock.now() + self.off
        self.group.entries.append((self.group.term, now, payload))
        return Command(len(self.group.entries), self.group.term, now)

    def propose(self, payload: bytes) -> Any:
        return self.decide(lambda command: payload)

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        command = self.append(None)
        self.catch_up()
        payload = make(command)
        if payload is None:
            return None
        luck = self.group.rng.random()
        if luck < 0.2:
            self.group.between()
        elif luck < 0.25:
            self.group.elect()
        elif luck < 0.28:
            raise NoAnswer(waited_seconds=1.0, reason="it is lost")
        place = self.append(payload).index
        if luck > 0.97:
            raise NoAnswer(waited_seconds=1.0, reason="it comes")
        self.catch_up(place - 1)
        return self.catch_up(place)

    def compact(self, index: int) -> Skipped:
        return Skipped("every entry stays")

    @property
    def last_index(self) -> int:
        return len(self.group.entries)

    def close(self) -> None:
        self.group.nodes.remove(self)


class GroupWorld(World):
    """The same around the leader of three hosts, each with a store of its own."""

    def __init__(self, seed: int) -> None:
        self.hosts: list[SchedulerHost] = []
        self.stores = [MemoryStore() for _ in range(3)]
        self.clock = ManualClock(1e6)
        super().__init__(seed, None)

    def open(self) -> None:
        if not self.hosts:
            self.group = Group(self.rng)
            self.hosts = [self.host(number) for number in range(3)]
            self.group.elect()
            self.group.between = self.meanwhile
        else:
            number = self.rng.randrange(3)
            self.hosts[number].close()
            self.hosts[number] = self.host(number)
            self.group.elect()

    def host(self, number: int) -> SchedulerHost:
        node = Node(self.group, self.clock, self.rng.choice([0.0, 0.0, 20.0, -20.0, 4000.0, -86400.0]))
        self.group.nodes.append(node)
        host: SchedulerHost | None = None

        def fault(_: KVOperation) -> KVFault | None:
            # Who opens, and loads a snapshot, finds a store that answers.
            return None if host is None or self.rng.random() > self.chance else self.rng.choice(MEANWHILE)

        host = SchedulerHost(node, FaultyStore(self.stores[number], fault), self.config,
                             snapshot_every=self.rng.choice([0, 1, 3, 10]), clock=self.clock, policy=self.policy(),
                             observer=Deaf(), rng=random.Random(self.rng.random()))
        return host

    @property
    def scheduler(self) -> Any:
        leader: object = self.group.leader
        return next(host for host in self.hosts if host.log is leader)

    @scheduler.setter
    def scheduler(self, _: object) -> None:
        pass

    def meanwhile(self) -> None:
        between, self.group.between = self.group.between, lambda: None
        with contextlib.suppress(NotLeader):
            self.step()
        self.group.between = between

    def reopen(self, *, crash: bool) -> None:
        if self.group.between != self.meanwhile:
            return  # in the middle of a decision
        self.open()
        for host in self.hosts:
            host.log.catch_up()  # type: ignore[attr-defined]
        assert len({host.machine.dump() for host in self.hosts}) == 1, "two nodes are not the same"


WRONG = (AuditFailed, CorruptData, Closed, InvalidInput)
GONE = (Stale, JournalConflict, LogBroken)
"""Nobody else has it open, and no log of these worlds breaks."""


def live_through(world: World) -> int:
    for _ in range(12):
        for _ in range(5):
            world.step()
        world.check()
    world.end()
    return world.accepted


@pytest.fixture(autouse=True)
def _unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What observers raise is logged, and pytest would keep gigabytes of that for thousands of lives."""
    monkeypatch.setattr(logging.getLogger("compactlib.observers"), "disabled", True)


def test_a_stored_scheduler_keeps_what_it_has_said(effort: Effort) -> None:
    assert sum(live_through(World(seed, None)) for seed in range(effort(12, 5_000))) > 50


def test_a_scheduler_on_a_log_keeps_what_it_has_said(memory_path: Path, effort: Effort) -> None:
    assert sum(live_through(World(seed, memory_path / str(seed))) for seed in range(effort(6, 1_000))) > 20


def test_a_scheduler_of_three_nodes_keeps_what_it_has_said(effort: Effort) -> None:
    assert sum(live_through(GroupWorld(seed)) for seed in range(effort(12, 5_000))) > 50


def key_of(block: BlockMeta) -> Key:
    return block.tenant, block.shard, block.id
