# SPDX-License-Identifier: Apache-2.0
"""`replay`: feed a workload to a store without payloads, and call its policy whenever the real store would.

A model is a frozen value: a store's settings. `start` makes a `Simulation` of it, which applies operations, senses when
its policy is due, gives it the view of the real store, carries out the choice, and counts. The four models are in
`blobs`, `raftlog`, `staging` and `scheduler`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

from compactlib.lab.report import Measures, Report
from compactlib.lab.workloads import PIECE, Row, Workload
from compactlib.observer import Observer, Observers
from compactlib.report import PolicyRecord

INTERVALS = 20
"""The approximate number of intervals of a report, if the length of the workload is known."""
_INTERVAL = 8_192
"""The operations of an interval if it is unknown."""


class Model(Protocol):
    """A store to be replayed; a frozen, picklable value."""

    def start(self, policy: Any, seed: int) -> Simulation:
        """Make an empty store with this policy. All its random draws come from the seed."""


class Simulation(ABC):
    """A store under replay. One thread at a time.

    Attributes:
        policy: chooses the victims.
        counts: the counts of the current interval.
        now_ms: the current time, milliseconds since the epoch.
    """

    def __init__(self, policy: Any) -> None:
        self.policy: Any = policy
        self.counts: Measures = Measures()
        self.now_ms: int = 0

    @abstractmethod
    def apply(self, rows: Sequence[Row]) -> None:
        """Make these operations; call the policy when it is due, and carry out its choice."""

    def advance(self, now_ms: int) -> None:
        """Move the time to `now_ms`, which is never before the current time."""
        self.now_ms = now_ms

    def finish(self) -> None:  # noqa: B027
        """Complete the work that is under way after the last operation, if there is any."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes that the store uses."""

    @property
    @abstractmethod
    def live_bytes(self) -> int:
        """Bytes of the records that a reader can read."""

    @property
    def record_bytes(self) -> int:
        """Bytes of all records, dead records included."""
        return self.used_bytes

    def sample(self) -> None:
        """Add the state of the store to the counts."""
        self.counts.used_sum += self.used_bytes
        self.counts.live_sum += self.live_bytes
        self.counts.record_sum += self.record_bytes

    def cut(self) -> Measures:
        """End an interval and return its counts; the next one begins."""
        self.sample()
        done = self.counts
        done.end, done.used_bytes, done.live_bytes = self.now_ms / 1000, self.used_bytes, self.live_bytes
        self.counts = Measures(start=done.end)
        return done


def replay(workload: Workload, policy: Any, model: Model, *, seed: int = 0,
           observer: Observer | None = None) -> Report:
    """Replay `workload` in the store that `model` describes, compacted by `policy`.

    Equal arguments give equal reports: a policy with a random generator is copied first. An operation takes two to
    eight microseconds, more with more segments and more frequent plans. Memory grows with the records in the store.

    Args:
        workload: a trace, or a workload drawn from a seed.
        policy: a `BlobPolicy`, `LogPolicy`, `SensePolicy` or `AssignmentPolicy`, as the model needs.
        model: `BlobLogModel`, `RaftLogModel`, `BranchModel` or `SchedulerModel`.
        seed: the seed of the random draws of the workload and the model.
        observer: notified of progress, in operations.

    Raises:
        InvalidInput: a record does not fit into a segment, or the policy's choice breaks a rule.
    """
    simulation = model.start(copy.deepcopy(policy), seed)
    observers, intervals, done = Observers(observer), list[Measures](), 0
    length = workload.operations // INTERVALS or _INTERVAL
    operations = iter(workload.rows(seed))
    # At least five pieces an interval.
    while rows := list(islice(operations, min(length // 5 + 1, PIECE))):
        if not done:
            simulation.counts.start = rows[0][4] / 1000
        simulation.apply(rows)
        done += len(rows)
        observers.event("progress", work=f"replay {workload.name} against {policy.name}", done=done,
                        total=max(workload.operations, done), unit="operations")
        if simulation.counts.operations >= length:
            intervals.append(simulation.cut())
    simulation.finish()
    if simulation.counts.operations or simulation.counts.asked or not intervals:
        intervals.append(simulation.cut())
    return Report(policy=str(PolicyRecord.of(policy)), workload=str(workload), intervals=tuple(intervals))
