# SPDX-License-Identifier: Apache-2.0
"""`Scheduler`: hands compaction jobs to workers, over any command log.

The log orders what happens; the scheduler's state is what the log's commands make of it. Now and then the state goes
into a `SnapshotStore`, and the log forgets what led there. After a restart the state is the snapshot with the rest of
the log carried out again, which is exactly the state before.

The settings are changed by commands of the same log: what was carried out under old ones is never judged by new ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from compactlib._closing import Closing
from compactlib.commandlog.errors import NoAnswer, NotLeader
from compactlib.commandlog.protocol import Command, CommandLog
from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.guard import take_within
from compactlib.kv.snapshots import SnapshotStore
from compactlib.observer import Observer, Observers
from compactlib.report import Table
from compactlib.scheduler.apply import JOB_COMPLETED, JOB_EXCLUDED, JOB_QUARANTINED
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.errors import PollAgain
from compactlib.scheduler.machine import SchedulerMachine
from compactlib.scheduler.policy import AssignmentPolicy
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.update import (
    AddBlocks,
    ApplyResult,
    BlocksAdded,
    Configure,
    Operation,
    Requeue,
    Requeued,
    Retain,
    Retained,
    TermChanged,
    Tick,
    Ticked,
)
from compactlib.scheduler.values import BlockMeta, PollRequest, PollResponse
from compactlib.store_numbers import Moved, StoreLevels, StoreNumbers

SNAPSHOT_FAILED = "scheduler_snapshot_failed"
"""A snapshot was not written, or not surely; it is tried again after an eighth of the commands: `error`."""
LEFTOVERS_STAY = "scheduler_leftovers_stay"
"""A snapshot is in force, and what it replaces could not be removed, from the store or from the log: `error`."""
_BYTES_A_COMMAND = 1024
"""Of a snapshot, so many bytes are written for each command that it covers anew."""
_NUMBERS = StoreNumbers("scheduler", "scheduler")
_GIVEN_UP = {JOB_EXCLUDED: "excluded", JOB_QUARANTINED: "quarantined"}
ResultT = TypeVar("ResultT")


class Scheduler(Closing):
    """A scheduler that survives its process; also a `Transport` for workers. Any thread may call any method.

    Answers are given once everything that they rest on is durable. A poll that changes nothing writes nothing on a log
    of one node; on a replicated one it is an entry that changes nothing.

    Args:
        log: orders the commands; started, and from then on owned, by the scheduler, which closes it.
        snapshots: where the state goes. `None`: the log keeps itself small, as that of a Raft library may, or grows.
        config: the settings that hold from now on; `None` for those that are in force, the default ones of a new
            scheduler. Equal ones write nothing. In a group the leader's hold; give every node the same.
        snapshot_every: commands after which a snapshot is taken, in the thread of the call at hand; one for each KiB of
            the state, if that is more; 0 for never.
        policy: which job a poll gives out first; no part of what is ordered or stored, so that each node may have its
            own, and the leader's counts. Default `ByPriority`.
        observer: notified of what the commands of this scheduler make happen, once each has its answer, and outside of
            any lock; a replay reports nothing.

    Raises:
        OutOfStep: the log does not continue the snapshot.
        CorruptData, Unsupported: a snapshot or a command cannot be read, or was written by another release.
        InvalidInput: `snapshot_every` is negative.
        CompactlibError: what log or store raise.
    """

    def __init__(self, log: CommandLog, snapshots: SnapshotStore | None = None, config: SchedulerConfig | None = None,
                 *, snapshot_every: int = 1000, policy: AssignmentPolicy | None = None,
                 observer: Observer | None = None) -> None:
        if snapshot_every < 0:
            raise InvalidInput(f"snapshot_every is {snapshot_every}; give commands, or 0 for never")
        self._log = log
        self._snapshots = snapshots
        self._every = snapshot_every
        self._observer = Observers(observer)
        self._machine = SchedulerMachine(policy=policy)
        self._unproposed = config
        self._snapshotting = threading.RLock()
        self._snapshot_index, self._snapshot_bytes, self._refused_index = 0, 0, 0
        self._last_error: CompactlibError | None = None
        self._failures = 0
        try:
            self._restore()
            log.start(self._machine)
            with suppress(NotLeader, NoAnswer):
                # Where another node leads, with the first command after this one does.
                self._propose_settings()
        except BaseException:
            log.close()
            raise

    def _restore(self) -> None:
        snapshot = None if self._snapshots is None else self._snapshots.load()
        if snapshot is not None:
            self._machine.load(snapshot.data)
            if self._machine.applied_index != snapshot.index:
                raise CorruptData(path=repr(self._snapshots), offset=0, expected=f"a state after {snapshot.index}",
                                  found=f"a state after {self._machine.applied_index}")
            self._snapshot_index, self._snapshot_bytes = snapshot.index, len(snapshot.data)

    # -- commands

    def poll(self, request: PollRequest) -> PollResponse:
        """Carry out one poll of a worker.

        Raises:
            InvalidInput: the capacity is negative, or there are too many updates, or what is reported cannot be stored.
            PollAgain: the leader changed between the two phases.
            CompactlibError: what the log raises; see `CommandLog.decide`.
        """
        idle = PollResponse()

        def prepare(command: Command) -> bytes | None:
            nonlocal idle
            update, idle = self._machine.prepare(command, request)
            return None if update.is_empty else self._machine.encode(update)

        result = self._decide(prepare)
        if result is None:
            return idle
        if isinstance(result, TermChanged):
            raise PollAgain(prepared=result.prepared, found=result.found)
        assert isinstance(result, PollResponse), result
        return result

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        """Add new blocks to the index and the compaction queue; returns the outcome of each. May be repeated."""
        return self._carry_out(AddBlocks(tuple(blocks)), BlocksAdded)

    def tick(self) -> Ticked:
        """Flush what is old, as each poll does."""
        return self._carry_out(Tick(), Ticked)

    def retain(self, before: float) -> Retained:
        """Forget blocks whose newest data is older than `before`, seconds since the epoch; see `Retain`."""
        return self._carry_out(Retain(before), Retained)

    def requeue(self, names: Iterable[str]) -> Requeued:
        """Try jobs again that failed: in quarantine, or still queued; see `Requeue`."""
        return self._carry_out(Requeue(tuple(names)), Requeued)

    def configure(self, config: SchedulerConfig) -> SchedulerConfig:
        """Have other settings hold from now on, on every node; returns those before. O(everything)."""
        return self._carry_out(Configure(config), SchedulerConfig)

    def _carry_out(self, operation: Operation, kind: type[ResultT]) -> ResultT:
        result = self._decide(lambda command: self._machine.encode(operation))
        assert isinstance(result, kind), result
        return result

    def _propose_settings(self) -> None:
        wanted = self._unproposed
        if wanted is not None:
            self._send(lambda command: None if self._machine.config == wanted else self._machine.encode(
                Configure(wanted)))
            self._unproposed = None

    def _decide(self, make: Callable[[Command], bytes | None]) -> ApplyResult | None:
        self._propose_settings()
        result = self._send(make)
        if result is not None:
            self._snapshot_if_due()
        return result

    def _send(self, make: Callable[[Command], bytes | None]) -> ApplyResult | None:
        decided = self._log.decide(make)
        if decided is None:
            return None
        result: ApplyResult
        result, events = decided
        for name, fields in events:
            self._notify(name, fields)
        return result

    def _notify(self, name: str, fields: dict[str, Any]) -> None:
        self._observer.event(name, **fields)
        if name == JOB_COMPLETED:
            _NUMBERS.ended(self._observer, "done", "job", fields["seconds"], Moved(
                read=fields["source_bytes"], copied=fields["output_bytes"],
                freed=fields["source_bytes"] - fields["output_bytes"]))
        elif name in _GIVEN_UP:
            _NUMBERS.ended(self._observer, "failed", _GIVEN_UP[name], None, Moved())

    # -- reading it

    def look(self, at: Callable[[SchedulerMachine], ResultT]) -> ResultT:
        """Return what `at` finds in the scheduler, between two commands; everything it sees is durable.

        Keep it short: nothing else happens meanwhile. It must not keep parts of the machine, nor change it.
        """
        return self._look(lambda machine, now: at(machine))

    def _look(self, at: Callable[[SchedulerMachine, float], ResultT]) -> ResultT:
        found: list[ResultT] = []

        def see(command: Command) -> None:
            found.append(at(self._machine, command.appended_at))

        self._log.decide(see)
        return found[0]

    def status(self) -> dict[str, Any]:
        """Return how the scheduler stands, as plain values: a row a level, and how much else there is."""
        def of(machine: SchedulerMachine, now: float) -> dict[str, Any]:
            state = machine.state
            failed = [job for job in state.jobs if job.last_failure]
            last = max(failed, key=lambda job: job.token, default=None)
            return {"now": now, "index": state.applied_index, "term": self._log.term, "levels": machine.stats(now),
                    "blocks": len(state.index), "jobs": len(state.jobs), **state.jobs.counts,
                    "quarantine": len(state.quarantine), "tombstones": len(state.tombstones),
                    "last_failure": "" if last is None else f"{last.name}: {last.last_failure}"}

        return self._look(of)

    def table(self) -> Table:
        """Return the queued jobs by priority, with token, lease and last failure, for people."""
        return self._look(lambda machine, now: machine.table(now))

    def audit(self) -> None:
        """Check the state. O(everything).

        Raises:
            AuditFailed: something is wrong; the message has the numbers.
        """
        self.look(lambda machine: machine.audit())

    # -- snapshots

    def snapshot(self) -> int:
        """Write the state to the store, and let the log forget what led there. Commands wait while it is copied.

        Returns:
            The index of the last command that the snapshot in force covers.

        Raises:
            InvalidInput: this scheduler has no store for snapshots.
            CompactlibError: what the store or the log raises. A snapshot that was written stays in force, and the next
                one lets the log forget what this one could not.
        """
        snapshots = self._snapshots
        if snapshots is None:
            raise InvalidInput("this scheduler has no store for snapshots; give it one, Scheduler(log, snapshots)")
        with self._snapshotting:
            index, data, levels = self.look(lambda machine: (machine.applied_index, machine.dump(),
                                                             _levels_of(machine.state)))
            if index > self._snapshot_index:
                self._refused_index = index
                snapshots.save(self._log.term, index, data)
                self._snapshot_index, self._snapshot_bytes, self._refused_index = index, len(data), 0
                self._clean_up(snapshots, index)
                _NUMBERS.levels(self._observer, levels)
            return self._snapshot_index

    def _clean_up(self, snapshots: SnapshotStore, index: int) -> None:
        for remove in (snapshots.delete_leftovers, lambda: self._log.compact(index)):
            try:
                remove()
            except CompactlibError as error:
                self._observer.event(LEFTOVERS_STAY, error=str(error))

    def _snapshot_if_due(self) -> None:
        index = self._log.last_index
        commands = max(self._every, self._snapshot_bytes // _BYTES_A_COMMAND)
        if (self._snapshots is None or not self._every or index - self._snapshot_index < commands
                or index - self._refused_index < commands // 8):
            return
        taken: list[bool] = []
        try:
            take_within(self._snapshotting, 0.0, taken)
            if taken[0]:
                self.snapshot()
        except CompactlibError as error:
            # The command is durable, and its answer true.
            self._last_error, self._failures = error, self._failures + 1
            self._observer.event(SNAPSHOT_FAILED, error=str(error))
        finally:
            if taken and taken[0]:
                self._snapshotting.release()

    @property
    def last_error(self) -> CompactlibError | None:
        """What kept a snapshot from being written last, beside a command; `None` if nothing ever did."""
        return self._last_error

    @property
    def failures(self) -> int:
        """How often that was."""
        return self._failures

    @property
    def term(self) -> int:
        """The log's term."""
        return self._log.term

    def close(self) -> None:
        """Close the log; closing again does nothing. The store stays open.

        Raises:
            Busy: called from within a command, as by what `look` was given; nothing was done.
        """
        self._log.close()

    def __str__(self) -> str:
        status = self.status()
        return "\n".join((repr(self), str(Table.from_dicts(status["levels"], title="levels")), str(self.table()),
                          f"{status['quarantine']} in quarantine, last failure: {status['last_failure'] or 'none'}"))

    def __repr__(self) -> str:
        return f"Scheduler({self._log!r}, {self._machine.state!r})"


def _levels_of(state: SchedulerState) -> StoreLevels:
    """What waits to be compacted and what to be deleted."""
    first = state.jobs.first_lease()
    oldest = next(iter(state.tombstones), None)
    return StoreLevels(
        live_bytes=state.jobs.size_bytes,
        oldest_lease_seconds=None if first is None else first - state.config.lease_seconds,
        oldest_unreclaimed_seconds=None if oldest is None else oldest.appended_at)
