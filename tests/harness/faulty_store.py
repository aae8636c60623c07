# SPDX-License-Identifier: Apache-2.0
"""A key-value store that notes each operation, and on which chosen operations fail."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from compactlib.errors import CompactlibError
from compactlib.kv import KVStore, OutcomeUnknown, PredicateFailed, SlowDown, StoreFailed
from compactlib.testing import Killed, Request, StoreInFront


class KVCrash(Killed):
    """The process ended at an operation of a key-value store."""


class KVFault(enum.Enum):
    """What happens to one operation."""

    SLOW_DOWN = "slow down"
    """`SlowDown`; not carried out."""
    FAIL = "refused"
    """`StoreFailed`; not carried out."""
    CONFLICT = "conflict"
    """`PredicateFailed` if the operation has a condition, else nothing."""
    CRASH_BEFORE = "crash before"
    """`KVCrash`, now and for every later operation; not carried out."""
    CRASH_AFTER = "crash after"
    """`KVCrash`, now and for every later operation; carried out."""
    UNKNOWN_DONE = "unknown, done"
    """`OutcomeUnknown`, of a read `StoreFailed`; carried out."""
    UNKNOWN_LOST = "unknown, lost"
    """The same; never carried out."""
    UNKNOWN_LATE = "unknown, late"
    """The same; carried out two operations later, or by `settle()`."""


@attrs.frozen
class KVOperation:
    """One operation: its number from 1, the method's name, and its first cell."""

    number: int
    name: str
    partition: bytes
    key: bytes

    @property
    def changes(self) -> bool:
        return self.name not in ("get", "get_many", "scan")

    @property
    def conditional(self) -> bool:
        return self.name in ("set_if", "delete_if", "transact")

    def __str__(self) -> str:
        return f"operation {self.number}: {self.name} {self.partition!r} {self.key!r}"


FaultChoice: TypeAlias = Callable[[KVOperation], KVFault | None]


def fault_at(number: int, fault: KVFault) -> FaultChoice:
    """A choice that lets one operation, counted from 1, meet a fault."""
    return lambda operation: fault if operation.number == number else None


class FaultyStore(StoreInFront):
    """A key-value store in front of another one. Threads may share it.

    Args:
        store: carries out what does not fail; stays open.
        faults: chooses for each operation before it is carried out; it may also wait.
    """

    def __init__(self, store: KVStore, faults: FaultChoice | None = None) -> None:
        super().__init__(store, self._meet)
        self.operations: list[KVOperation] = []
        self.acknowledged: list[Any] = []
        self._faults = faults
        self._crashed = False
        self._late: list[tuple[int, Callable[[], Any]]] = []
        self._lock = threading.Lock()

    def acknowledge(self, value: Any) -> None:
        """Note what the code under test has promised."""
        if not self._crashed:
            self.acknowledged.append(value)

    def settle(self) -> None:
        """Carry out the writes that are late."""
        self._carry_out_late(None)

    def _meet(self, request: Request, act: Callable[[], Any]) -> Any:
        self._require_running()
        with self._lock:
            operation = KVOperation(len(self.operations) + 1, request.kind, request.partition, request.key)
            self.operations.append(operation)
        self._carry_out_late(operation.number)
        fault = None if self._faults is None else self._faults(operation)
        # Another thread may have ended the process while this one waited.
        self._require_running()
        match fault:
            case KVFault.SLOW_DOWN:
                raise SlowDown(operation=operation.name, detail=f"an injected fault at {operation}")
            case KVFault.FAIL:
                raise StoreFailed(operation=operation.name, path="FaultyStore",
                                  detail=f"an injected fault at {operation}")
            case KVFault.CONFLICT if operation.conditional:
                raise PredicateFailed(partition=operation.partition, key=operation.key)
            case KVFault.CRASH_BEFORE:
                self._crashed = True
                raise KVCrash(str(operation))
            case KVFault.UNKNOWN_LOST | KVFault.UNKNOWN_LATE:
                if operation.changes and fault is KVFault.UNKNOWN_LATE:
                    with self._lock:
                        self._late.append((operation.number + 2, act))
                raise _unknown(operation)
        try:
            return act()
        finally:
            # The caller does not learn what the store answered.
            if fault is KVFault.CRASH_AFTER:
                self._crashed = True
                raise KVCrash(str(operation))
            if fault is KVFault.UNKNOWN_DONE:
                raise _unknown(operation)

    def _require_running(self) -> None:
        if self._crashed:
            raise KVCrash("an operation after the crash")

    def _carry_out_late(self, number: int | None) -> None:
        with self._lock:
            due = [late for late in self._late if number is None or late[0] <= number]
            self._late = [late for late in self._late if late not in due]
        for _, act in due:
            # No caller waits for its answer any more.
            with contextlib.suppress(CompactlibError):
                act()


def _unknown(operation: KVOperation) -> StoreFailed:
    kind = OutcomeUnknown if operation.changes else StoreFailed
    return kind(operation=operation.name, path="FaultyStore", detail=f"an injected time-out at {operation}")
