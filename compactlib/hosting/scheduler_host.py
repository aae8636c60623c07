# SPDX-License-Identifier: Apache-2.0
"""`SchedulerHost`: a scheduler on a command log, for one node or a group of them; workers poll it directly.

The log orders what happens; the scheduler's state is what the log's commands make of it. Now and then the state goes
into a key-value store as a snapshot, and the log forgets what led there. After a restart the state is the snapshot with
the rest of the log carried out again, which is exactly the state before.

The settings are part of what the log orders: what was carried out under old ones is never judged again by new ones.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from compactlib._closing import Closing
from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, InvalidInput
from compactlib.hosting.command_log import CommandLog
from compactlib.hosting.errors import NoAnswer, PollAgain
from compactlib.kv import KVStore
from compactlib.kv.snapshots import SnapshotStore
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime.observe import Observer, telling
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    BlockMeta,
    PollRequest,
    SchedulerConfig,
    SchedulerService,
)
from compactlib.scheduler.model.poll import PollResponse
from compactlib.scheduler.model.update import (
    Applied,
    ApplyResult,
    BlocksAdded,
    Configure,
    Configured,
    Opening,
    Operation,
    Requeue,
    Requeued,
    Retain,
    Retained,
    TermChanged,
    Tick,
    Ticked,
)
from compactlib.scheduler.model.values import Command
from compactlib.scheduler.persistence.codec import encode_message
from compactlib.scheduler.service.machine import LEFTOVERS_STAY, SNAPSHOT_FAILED, SchedulerMachine
from compactlib.scheduler.service.numbers import NUMBERS, Event, levels_of, tell_events

AnswerT = TypeVar("AnswerT")


class _Driven:
    """The machine as a log drives it: each answer brings along what happened, to be reported outside of its lock."""

    def __init__(self, machine: SchedulerMachine) -> None:
        self._machine = machine

    @property
    def applied_index(self) -> int:
        return self._machine.applied_index

    def apply(self, command: Command, payload: bytes) -> tuple[ApplyResult | SchedulerConfig, Sequence[Event]]:
        result = self._machine.apply(command, payload)
        return result, self._machine.events

    def dump(self) -> bytes:
        return self._machine.dump()

    def load(self, data: bytes) -> None:
        self._machine.load(data)


class SchedulerHost(Closing):
    """A scheduler that survives its process, also a `Transport` for workers. Any thread may call any method.

    Answers are given once everything that they rest on is durable. A poll that changes nothing writes nothing on a log
    of one node; on a replicated one it is an entry that changes nothing.

    Args:
        log: orders the commands; started, and from then on owned, by the host, which closes it.
        kv: where snapshots go. `None`: the log keeps itself small, as the Raft adapter does. Stays open.
        config: may be another one after a restart: then it holds from a command of its own on, which is the first one
            that this host proposes. The same as before leaves alone what `configure` has changed since. In a group the
            leader's holds; give every node the same.
        partition: of the store, for this scheduler's snapshots alone.
        snapshot_every: commands after which a snapshot is taken, in the thread of the poll at hand; one for each KiB of
            the state, if that is more; 0 for never.
        with_index: whether a new scheduler has a metadata index; one that was there keeps what it has, on every node
            of a group.
        policy: which job a poll gives out first; no part of what is ordered or stored, so that each node may have its
            own, and the leader's counts.
        observer: notified of what the commands of this host make happen, once each has its answer, and outside of any
            lock; a replay reports nothing.
        clock: for the pauses between looks after a write to `kv` that got no answer.
        rng: distinguishes two processes that write snapshots at once; give each its own seed.

    Attributes:
        log: the log, for looking at it.
        machine: what the log drives, for looking at it between commands; see `look`.

    Raises:
        OutOfStep: the log does not continue the snapshot.
        CorruptData, Unsupported: a snapshot or a command cannot be read, or was written by another release.
        InvalidInput: `snapshot_every` is negative.
        CompactlibError: what log or store raise.
    """

    def __init__(self, log: CommandLog, kv: KVStore | None = None, config: SchedulerConfig | None = None, *,
                 partition: bytes = b"scheduler/snapshot", snapshot_every: int = 10_000, with_index: bool = True,
                 policy: AssignmentPolicy | None = None, observer: Observer | None = None, clock: Clock | None = None,
                 rng: random.Random | None = None) -> None:
        if snapshot_every < 0:
            raise InvalidInput(f"snapshot_every is {snapshot_every}; give 0 or more")
        self.log: CommandLog = log
        self._every = snapshot_every
        self._observer = telling(observer)
        self._config = config or SchedulerConfig()
        self._settings = encode_message(Opening(self._config, with_index))
        self.machine: SchedulerMachine = SchedulerMachine(self._config, with_index=with_index, policy=policy)
        self._snapshots = None if kv is None else SnapshotStore(kv, partition, clock=clock, rng=rng)
        self._snapshotting = threading.Lock()
        self._last_error: CompactlibError | None = None
        self._failures = 0
        if self._snapshots is not None:
            self.machine.restore(self._snapshots)
        log.start(_Driven(self.machine))
        try:
            with contextlib.suppress(Busy, NoAnswer):
                # Where this node does not lead, or its clock is in doubt: with the first command.
                self._decide(lambda command: None)
        except BaseException:
            log.close()
            raise

    # -- what changes the state

    def poll(self, request: PollRequest) -> PollResponse:
        """One poll of a worker.

        Raises:
            PollAgain: the leader changed between the two phases.
            InvalidInput: the capacity is negative, or there are too many updates.
            ClockJumped: the clock is off by more than its bound; nothing was changed.
            NotLeader, NoAnswer, LogBroken: see `CommandLog.propose`.
        """
        idle = PollResponse()

        def prepare(command: Command) -> bytes | None:
            nonlocal idle
            update = self.machine.prepare(command, request)
            if isinstance(update, PollResponse):
                idle = update
                return None
            return self.machine.encode(update)

        result = self._decide(prepare)
        if result is None:
            return idle
        if isinstance(result, TermChanged):
            raise PollAgain(prepared=result.prepared, found=result.found)
        assert isinstance(result, Applied), result
        self._snapshot_if_due()
        return result.response

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        """New blocks: into the metadata index and the compaction queue. The answer holds the outcome of each."""
        return self._carry_out(AddBlocks(tuple(blocks)), BlocksAdded)

    def tick(self) -> Ticked:
        """Time has passed: flush what is old, as each poll does."""
        return self._carry_out(Tick(), Ticked)

    def retain(self, before: float) -> Retained:
        """Forget blocks whose newest data is older than `before`, seconds since the epoch."""
        return self._carry_out(Retain(before), Retained)

    def requeue(self, names: Iterable[str]) -> Requeued:
        """Try jobs again that failed: in quarantine, or still queued; see `Requeue`."""
        return self._carry_out(Requeue(tuple(names)), Requeued)

    def configure(self, config: SchedulerConfig) -> Configured:
        """Other settings hold from now on, on every node and over restarts; see `Configure`. O(everything)."""
        return self._carry_out(Configure(config), Configured)

    def _carry_out(self, operation: Operation, kind: type[AnswerT]) -> AnswerT:
        # Encoded within the log's order, where the machine may remember it.
        result = self._decide(lambda command: self.machine.encode(operation))
        assert isinstance(result, kind), result
        self._snapshot_if_due()
        return result

    def _decide(self, make: Callable[[Command], bytes | None]) -> Any:
        """`CommandLog.decide` under this host's settings; reports what happened."""
        def under_settings(command: Command) -> bytes | None:
            machine = self.machine
            if machine.has_settings and machine.service.state.opened_with == self._config:
                return make(command)
            return self._settings

        while True:
            decided = self.log.decide(under_settings)
            if decided is None:
                return None
            result, events = decided
            tell_events(self._observer, events)
            if not isinstance(result, SchedulerConfig):
                return result

    # -- what looks at it

    def look(self, at: Callable[[SchedulerService], AnswerT]) -> AnswerT:
        """What `at` finds in the scheduler, between two commands; everything it sees is durable.

        Keep it short: nothing else happens meanwhile. It must not keep parts of the service, nor change it.
        """
        found: list[AnswerT] = []

        def see(command: Command) -> None:
            found.append(at(self.machine.service))

        self.log.decide(see)
        return found[0]

    # -- snapshots

    def snapshot(self) -> Done[int] | Skipped | Failed:
        """Write the state to the store, and let the log forget what led there. Commands wait while it is copied.

        Returns:
            `Done` with the index of the last command that the snapshot covers; `Failed` if the store refused, which
            changes nothing, or did not answer: then the snapshot may be in force, which is as good.
        """
        snapshots = self._snapshots
        if snapshots is None:
            return Skipped("this host has no store for snapshots; the log keeps itself small")
        if self._snapshotting.locked():
            return Skipped("a snapshot is being taken")
        told: list[tuple[str, object]] = []
        try:
            # By `with` alone: an interrupt between `acquire` and a `try` would leave it held.
            with self._snapshotting:
                return self._save(snapshots, told)
        except CompactlibError as error:
            self._last_error, self._failures = error, self._failures + 1
            told.append((SNAPSHOT_FAILED, error))
            return Failed(error)
        finally:
            for name, what in told:
                if what is not None:
                    self._observer.event(name, {"error": str(what)})

    def _save(self, snapshots: SnapshotStore, told: list[tuple[str, object]]) -> Done[int] | Skipped:
        index, data, levels = self.look(lambda service: (
            service.state.applied_index, self.machine.dump(), levels_of(service.state)))
        if index <= snapshots.index:
            return Skipped(f"nothing has happened since command {snapshots.index}")
        snapshots.save(index, data)
        told.append((LEFTOVERS_STAY, snapshots.cleanup_error))
        compacted: Done[Any] | Skipped | Failed
        try:
            compacted = self.log.compact(index)
        except CompactlibError as error:
            # The snapshot is in force; what the log could not forget now, it does with the next one.
            compacted = Failed(error)
        told.append((LEFTOVERS_STAY, compacted.error if isinstance(compacted, Failed) else None))
        NUMBERS.levels(self._observer, levels)
        return Done(index)

    def _snapshot_if_due(self) -> None:
        if self._snapshots is not None and self._every and self._snapshots.is_due(self.log.last_index, self._every):
            # Whether it succeeds or not, the command is done; one that failed is due again a little later.
            self.snapshot()

    @property
    def last_error(self) -> CompactlibError | None:
        """What kept a snapshot from being written last; `None` if nothing ever did."""
        return self._last_error

    @property
    def failures(self) -> int:
        """How often that was."""
        return self._failures

    def close(self) -> None:
        """Close the log; closing again does nothing. The store stays open.

        Raises:
            Busy: called from within a command, as by what `look` was given; nothing was done.
        """
        self.log.close()

    def __repr__(self) -> str:
        return f"SchedulerHost({self.log!r}, {self.machine.service!r})"
