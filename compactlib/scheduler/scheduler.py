# SPDX-License-Identifier: Apache-2.0
"""`Scheduler`: assigns compaction jobs to workers, over any command log.

The log orders the commands; the state is a function of them. From time to time the state is saved in a `SnapshotStore`,
and the log deletes the commands before. After a restart the state is the snapshot with the rest of the log applied,
which is the state before.

Commands of the same log change the settings, so that earlier commands are replayed under the earlier settings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

from compactlib._closing import Closing, closed_on_failure
from compactlib._store_numbers import notify_compaction, notify_levels
from compactlib.commandlog.errors import NoAnswer, NotLeader
from compactlib.commandlog.protocol import Command, CommandLog
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.guard import take_within
from compactlib.kv.snapshots import SnapshotStore
from compactlib.observer import Observer, Observers
from compactlib.report import Table
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.errors import PollAgain
from compactlib.scheduler.machine import SchedulerMachine
from compactlib.scheduler.policy import AssignmentPolicy
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
)
from compactlib.scheduler.values import BlockMeta, PollRequest, PollResponse

_BYTES_A_COMMAND = 1024
"""Bytes of a snapshot for each command since the last snapshot."""
_LABELS: Final = ("scheduler", "scheduler")  # kind and store
_GIVEN_UP = {"scheduler_job_excluded": "excluded", "scheduler_job_quarantined": "quarantined"}
ResultT = TypeVar("ResultT")


class Scheduler(Closing):
    """A durable scheduler; also a `Transport` for workers. Threads may share it.

    An answer is returned after all that it depends on is durable. A poll without changes writes nothing to a log of one
    node; in a replicated log it is an entry without effect.

    Args:
        log: orders the commands; the scheduler starts, owns and closes it.
        snapshots: the snapshots of the state. `None`: the log compacts itself, as a Raft library may, or grows.
        config: the new settings; `None` keeps the settings in force, which are the defaults in a new scheduler. Equal
            settings write nothing. In a group the leader's settings hold; pass the same on every node.
        snapshot_every: the number of commands from one snapshot to the next, at least one for each KiB of the state; 0
            for never. The thread of a call takes the snapshot.
        policy: orders the jobs of a poll. It is neither replicated nor stored: each node may have another, and the
            leader's is used. Default `ByPriority`.
        observer: receives the events of this scheduler's commands, after their answers and outside of locks; a replay
            emits none.

    Attributes:
        last_error: the error of a snapshot after a command, if any.
        failures: the number of these errors.

    Raises:
        OutOfStep: the log does not continue the snapshot.
        CorruptData, Unsupported: a snapshot or a command is damaged, or another release wrote it.
        InvalidInput: `snapshot_every` is negative.
        CompactlibError: of the log or the store.
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
        self._snapshot_index = 0
        self._due_at = snapshot_every  # the index at which the next snapshot is taken
        self.last_error: CompactlibError | None = None
        self.failures: int = 0
        with closed_on_failure(log):
            snapshot = None if snapshots is None else snapshots.load()
            if snapshot is not None:
                self._machine.load(snapshot.data)
                self._note_snapshot(snapshot.index, snapshot.data)
            log.start(self._machine)
            with suppress(NotLeader, NoAnswer):
                # If another node leads, the settings are proposed with the first command after this node leads.
                self._propose_settings()

    def _note_snapshot(self, index: int, data: bytes) -> None:
        self._snapshot_index, self._due_at = index, index + max(self._every, len(data) // _BYTES_A_COMMAND)

    # -- commands

    def poll(self, request: PollRequest) -> PollResponse:
        """Carry out one poll of a worker.

        Raises:
            InvalidInput: the capacity is negative, there are too many updates, or a report cannot be stored.
            PollAgain: the leader changed between the two phases.
            CompactlibError: of the log; see `CommandLog.decide`.
        """
        idle = PollResponse()

        def prepare(command: Command) -> bytes | None:
            nonlocal idle
            update, idle = self._machine.prepare(command, request)
            return None if update.is_empty else self._machine.encode(update)

        result = self._decide(prepare)
        if result is None:
            return idle
        if isinstance(result, PollAgain):
            raise result
        assert isinstance(result, PollResponse), result
        return result

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        """Add new blocks to the index and the compaction queue; return the outcome of each. Idempotent."""
        return self._carry_out(AddBlocks(tuple(blocks)), BlocksAdded)

    def retain(self, before: float) -> Retained:
        """Remove blocks without data from `before` on, in seconds since the epoch; see `Retain`."""
        return self._carry_out(Retain(before), Retained)

    def requeue(self, names: Iterable[str]) -> Requeued:
        """Retry failed jobs, in quarantine or still queued; see `Requeue`."""
        return self._carry_out(Requeue(tuple(names)), Requeued)

    def configure(self, config: SchedulerConfig) -> SchedulerConfig:
        """Change the settings on every node; return the old settings. O(state)."""
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
        if name == "scheduler_job_completed":
            notify_compaction(self._observer, *_LABELS, "done", "job", fields["seconds"], read=fields["source_bytes"],
                              copied=fields["output_bytes"], freed=fields["source_bytes"] - fields["output_bytes"])
        elif name in _GIVEN_UP:
            notify_compaction(self._observer, *_LABELS, "failed", _GIVEN_UP[name], None)

    # -- reading the state

    def read(self, at: Callable[[SchedulerMachine], ResultT]) -> ResultT:
        """Return the result of `at`, called between two commands; the state that it reads is durable.

        Keep it short, since commands wait for it. It must not change the machine, nor keep references to its parts.
        """
        return self._read(lambda machine, now: at(machine))

    def _read(self, at: Callable[[SchedulerMachine, float], ResultT]) -> ResultT:
        found: list[ResultT] = []

        def see(command: Command) -> None:
            found.append(at(self._machine, command.appended_at))

        self._log.decide(see)
        return found[0]

    def status(self) -> dict[str, Any]:
        """Return the state in numbers, as plain values: a row for each level, and totals."""
        def of(machine: SchedulerMachine, now: float) -> dict[str, Any]:
            state = machine
            failed = [job for job in state.jobs if job.last_failure]
            last = max(failed, key=lambda job: job.token, default=None)
            return {"now": now, "index": state.applied_index, "term": self._log.term, "levels": machine.stats(now),
                    "blocks": len(state.index), "jobs": len(state.jobs), **state.jobs.counts,
                    "quarantine": len(state.quarantine), "tombstones": len(state.tombstones),
                    "last_failure": "" if last is None else f"{last.name}: {last.last_failure}"}

        return self._read(of)

    def table(self) -> Table:
        """Return the queued jobs by priority, with token, lease and last failure, as a table to print."""
        return self._read(lambda machine, now: machine.table(now))

    # -- snapshots

    def snapshot(self) -> int:
        """Save the state in the store, and delete the commands before from the log. Commands wait during the copy.

        Returns:
            The index of the last command that the snapshot in force covers.

        Raises:
            InvalidInput: this scheduler has no store for snapshots.
            CompactlibError: of the store or the log. A written snapshot stays in force, and the next snapshot deletes
                the commands that this one did not.
        """
        snapshots = self._snapshots
        if snapshots is None:
            raise InvalidInput("this scheduler has no store for snapshots; pass it, Scheduler(log, snapshots)")
        with self._snapshotting:
            index, data, levels = self.read(lambda machine: (machine.applied_index, machine.dump(),
                                                             _levels_of(machine)))
            if index > self._snapshot_index:
                self._due_at = index + (self._due_at - self._snapshot_index) // 8  # after an error
                snapshots.save(self._log.term, index, data)
                self._note_snapshot(index, data)
                for remove in (snapshots.delete_leftovers, lambda: self._log.compact(index)):
                    try:
                        remove()
                    except CompactlibError as error:
                        self._observer.event("scheduler_leftovers_stay", error=str(error))
                notify_levels(self._observer, *_LABELS, **levels)
            return self._snapshot_index

    def _snapshot_if_due(self) -> None:
        if self._snapshots is None or not self._every or self._log.last_index < self._due_at:
            return
        taken: list[bool] = []
        try:
            take_within(self._snapshotting, 0.0, taken)
            if taken[0]:
                self.snapshot()
        except CompactlibError as error:
            # The command is durable, and its answer is correct.
            self.last_error, self.failures = error, self.failures + 1
            self._observer.event("scheduler_snapshot_failed", error=str(error))
        finally:
            if taken and taken[0]:
                self._snapshotting.release()

    @property
    def term(self) -> int:
        """The log's term."""
        return self._log.term

    def close(self) -> None:
        """Close the log; closing again does nothing. The store stays open.

        Raises:
            Busy: called from within a command, for example by the argument of `read`; nothing was done.
        """
        self._log.close()

    def __str__(self) -> str:
        status = self.status()
        return "\n".join((repr(self), str(Table.from_dicts(status["levels"], title="levels")), str(self.table()),
                          f"{status['quarantine']} in quarantine, last failure: {status['last_failure'] or 'none'}"))

    def __repr__(self) -> str:
        return f"Scheduler({self._log!r}, {self._machine!r})"


def _levels_of(state: SchedulerMachine) -> dict[str, Any]:
    """Return the levels for `notify_levels`: jobs to compact and tombstones to delete."""
    leases = (job.lease_expires_at for job in state.jobs if job.lease_expires_at and not state.jobs.has_failed(job))
    first = min(leases, default=None)
    oldest = next(iter(state.tombstones), None)
    return {"live_bytes": sum(job.plan.size_bytes for job in state.jobs),
            "oldest_lease_seconds": None if first is None else first - state.config.lease_seconds,
            "oldest_unreclaimed_seconds": None if oldest is None else oldest.appended_at}
