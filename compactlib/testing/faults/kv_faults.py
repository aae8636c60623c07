# SPDX-License-Identifier: Apache-2.0
"""A key-value store that fails, crashes or leaves the outcome unknown at any operation, and keeps a log of all of them.

>>> from compactlib.kv import MemoryStore
>>> def move(store):
...     found = store.get(b"from", b"coin")
...     store.set(b"to", b"coin", found.value)
...     store.acknowledge("moved")
...     store.delete(b"from", b"coin")
>>> def prepared():
...     store = MemoryStore()
...     store.set(b"from", b"coin", b"1")
...     return store
>>> def check(store, run):
...     coins = [*store.scan(b"from"), *store.scan(b"to")]
...     assert coins, "the coin is gone"
>>> explore_kv_faults(prepared, move, check, [KVFault.CRASH_BEFORE, KVFault.CRASH_AFTER])
KVFaultReport(operations=3, runs=6)
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import attrs

from compactlib.errors import Closed, CompactlibError
from compactlib.kv.errors import OutcomeUnknown, PredicateFailed, SlowDown, StoreFailed
from compactlib.kv.parts.arguments import checked_cells, checked_partition
from compactlib.kv.parts.entries import PagedEntries
from compactlib.kv.store import (
    Cell,
    Condition,
    Delete,
    KVEntry,
    KVLimits,
    KVStore,
    MultiGet,
    Predicate,
    Put,
    Versioned,
    place_of,
)
from compactlib.testing.faults.plan import Crash, Fault

if TYPE_CHECKING:
    from typing_extensions import Buffer


class KVCrash(Crash):
    """The process "died" at this operation of a key-value store."""


class KVFault(enum.Enum):
    """What happens to one operation; each value is the `Fault` that means it for all backends."""

    SLOW_DOWN = Fault.SLOW_DOWN
    """`SlowDown`; not carried out."""
    FAIL = Fault.REFUSED
    """`StoreFailed`; not carried out."""
    CONFLICT = Fault.CONFLICT
    """`PredicateFailed`, if the operation has a condition, as if another writer had been first; else no fault."""
    CRASH_BEFORE = Fault.CRASH_BEFORE
    """`KVCrash`; not carried out, and neither is anything after it."""
    CRASH_AFTER = Fault.CRASH_AFTER
    """`KVCrash` after it was carried out; nothing after it is."""
    UNKNOWN_DONE = Fault.UNKNOWN_DONE
    """`OutcomeUnknown` after it was carried out. A read, in this and the next two, raises `StoreFailed`."""
    UNKNOWN_LOST = Fault.UNKNOWN_LOST
    """`OutcomeUnknown`; it never happens."""
    UNKNOWN_LATE = Fault.UNKNOWN_LATE
    """`OutcomeUnknown`; it happens just before the operation after the next, or with `settle()`."""


@attrs.frozen
class KVOperation:
    """One operation that reached the store.

    Attributes:
        number: counted from 1 for one `FaultyStore`.
        name: `"get"`, `"get_many"`, `"set"`, `"set_if"`, `"delete"`, `"delete_if"`, `"transact"`; `"scan"` for each
            page of a scan.
        partition: the partition; of several cells, that of the first.
        key: the key, where a page begins, or the first cell.
    """

    number: int
    name: str
    partition: bytes
    key: bytes

    @property
    def changes(self) -> bool:
        """Whether it writes."""
        return self.name not in ("get", "get_many", "scan")

    @property
    def conditional(self) -> bool:
        """Whether it may fail with `PredicateFailed`."""
        return self.name in ("set_if", "delete_if", "transact")

    def __str__(self) -> str:
        return f"operation {self.number}: {self.name} {self.partition!r} {self.key!r}"


FaultChoice: TypeAlias = Callable[[KVOperation], KVFault | None]
"""Says for each operation, before it is carried out, what happens to it; `None`: nothing."""


def fault_at(number: int, fault: KVFault) -> FaultChoice:
    """A choice that lets one operation, counted from 1, meet a fault."""
    return lambda operation: fault if operation.number == number else None


class FaultyStore:
    """A `KVStore` in front of another one. Threads may share it.

    Each page of a scan is an operation of its own. After a crash every operation raises `KVCrash`. Closing it does not
    close the store behind it, which the test goes on to look at.

    Args:
        store: carries out what does not fail.
        faults: chooses; called under no lock, so it may also wait, to hold one thread at a chosen operation.

    Attributes:
        operations: every operation so far, those that failed included.
        acknowledged: what the code under test passed to `acknowledge`.
    """

    def __init__(self, store: KVStore, faults: FaultChoice | None = None) -> None:
        self.operations: list[KVOperation] = []
        self.acknowledged: list[Any] = []
        self._store = store
        self._faults = faults
        self._crashed = False
        self._closed = False
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._lock = threading.Lock()

    @property
    def limits(self) -> KVLimits:
        """See `KVStore.limits`."""
        return self._store.limits

    def place(self) -> str | None:
        """See `Placed.place`: that of the store behind."""
        return place_of(self._store)

    def get(self, partition: bytes, key: bytes) -> Versioned:
        """See `KVStore.get`."""
        with self._step("get", partition, key):
            return self._store.get(partition, key)

    def get_many(self, cells: Sequence[Cell]) -> Sequence[Versioned | None]:
        """See `MultiGet.get_many`."""
        checked = checked_cells(cells, self.limits)
        with self._step("get_many", *(checked[0] if checked else (b"", b""))):
            return cast("MultiGet", self._store).get_many(checked)

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        """See `KVStore.set`."""
        data = _copied(value)
        self._change("set", partition, key, lambda: self._store.set(partition, key, data))

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        """See `KVStore.set_if`."""
        data = _copied(value)
        self._change("set_if", partition, key, lambda: self._store.set_if(partition, key, data, predicate))

    def delete(self, partition: bytes, key: bytes) -> None:
        """See `KVStore.delete`."""
        self._change("delete", partition, key, lambda: self._store.delete(partition, key))

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """See `KVStore.delete_if`."""
        self._change("delete_if", partition, key, lambda: self._store.delete_if(partition, key, predicate))

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> PagedEntries:
        """See `KVStore.scan`. Pages hold at most 1,000 entries, whatever the store behind would load at once."""
        partition = checked_partition(partition, self.limits)
        self._require_open()

        def load(position: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
            with self._step("scan", partition, position), \
                    self._store.scan(partition, position, page_size=limit, keys_only=keys_only) as entries:
                page = list(islice(entries, limit))
                return page, len(page) < limit

        return PagedEntries(load, start, prefix=prefix, after=after, page_size=page_size, largest_page=1000)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        """See `KVStore.transact`."""
        held, written, removed = tuple(conditions), tuple(puts), tuple(deletes)
        named: list[Condition | Put | Delete] = [*held, *written, *removed]
        partition, key = (named[0].partition, named[0].key) if named else (b"", b"")
        self._change("transact", partition, key, lambda: self._store.transact(held, written, removed))

    def close(self) -> None:
        """From now on every operation raises `Closed`; the store behind stays open."""
        self._closed = True

    def audit(self) -> None:
        """See `KVStore.audit`; no operation is counted."""
        self._store.audit()

    def acknowledge(self, value: Any) -> None:
        """Note, in the code under test, what it has promised to its caller from here on."""
        if not self._crashed:
            self.acknowledged.append(value)

    def settle(self) -> None:
        """Carry out the writes that are late."""
        self._carry_out_late(None)

    def __repr__(self) -> str:
        return f"FaultyStore({self._store!r}, {len(self.operations)} operations, crashed={self._crashed})"

    def _change(self, name: str, partition: bytes, key: bytes, act: Callable[[], object]) -> None:
        with self._step(name, partition, key, act):
            act()

    @contextlib.contextmanager
    def _step(self, name: str, partition: bytes, key: bytes, act: Callable[[], object] | None = None) -> Any:
        operation, fault = self._next(name, partition, key)
        match fault:
            case KVFault.SLOW_DOWN:
                raise SlowDown(operation=name, detail=f"an injected fault at {operation}")
            case KVFault.FAIL:
                raise StoreFailed(operation=name, path="FaultyStore", detail=f"an injected fault at {operation}")
            case KVFault.CONFLICT if operation.conditional:
                raise PredicateFailed(partition=partition, key=key)
            case KVFault.CRASH_BEFORE:
                self._crashed = True
                raise KVCrash(str(operation))
            case KVFault.UNKNOWN_LOST | KVFault.UNKNOWN_LATE:
                if act is not None and fault is KVFault.UNKNOWN_LATE:
                    with self._lock:
                        self._late.append((operation.number + 2, act))
                raise _unknown(operation)
        try:
            yield
        finally:
            # Whatever the store answered, its caller does not learn it.
            if fault is KVFault.CRASH_AFTER:
                self._crashed = True
                raise KVCrash(str(operation))
            if fault is KVFault.UNKNOWN_DONE:
                raise _unknown(operation)

    def _next(self, name: str, partition: bytes, key: bytes) -> tuple[KVOperation, KVFault | None]:
        self._require_open()
        with self._lock:
            operation = KVOperation(len(self.operations) + 1, name, partition, key)
            self.operations.append(operation)
        self._carry_out_late(operation.number)
        fault = None if self._faults is None else self._faults(operation)
        # Another thread may have crashed the process while this one was kept waiting.
        self._require_open()
        return operation, fault

    def _require_open(self) -> None:
        if self._crashed:
            raise KVCrash("an operation after the crash")
        if self._closed:
            raise Closed("the store was closed; make a new one")

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


def _copied(value: Buffer) -> Buffer:
    # A late write must not see what the caller does to its buffer meanwhile; wrong types are the store's to refuse.
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


@attrs.frozen
class KVRun:
    """How one run with a fault went.

    Attributes:
        fault: which fault.
        operation: the operation that met it.
        acknowledged: what the code had acknowledged before it ended.
        error: what it ended in: `KVCrash`, an error of the library, or `None` if it got over the fault.
    """

    fault: KVFault
    operation: KVOperation
    acknowledged: tuple[Any, ...]
    error: BaseException | None


@attrs.frozen
class KVFaultReport:
    """What `explore_kv_faults` did.

    Attributes:
        operations: how many operations the work makes if nothing fails.
        runs: how many runs met a fault; each was checked.
    """

    operations: int
    runs: int


def explore_kv_faults(make_store: Callable[[], KVStore], work: Callable[[FaultyStore], object],
                      check: Callable[[KVStore, KVRun], object], faults: Iterable[KVFault] = tuple(KVFault),
                      ) -> KVFaultReport:
    """Run `work` once for every operation that it makes and every fault, and check after each run.

    Args:
        make_store: makes the store that a run begins with, always the same.
        work: the code under test. It must make the same operations in every run, up to the fault.
        check: looks at the store, late writes having arrived; raises when something is wrong. Here belong: opening
            again, what was acknowledged is there, and a second run of the work succeeds.
        faults: which ones; all if not given.

    Raises:
        AssertionError: two runs differ before any fault.
        BaseException: what `check` raised, or the work's own error that is neither a crash nor the library's, with a
            note about the fault.
    """
    undisturbed = FaultyStore(make_store())
    work(undisturbed)
    runs = 0
    for fault in faults:
        for operation in undisturbed.operations:
            if fault is not KVFault.CONFLICT or operation.conditional:
                _check_run(make_store(), operation, fault, work, check)
                runs += 1
    return KVFaultReport(len(undisturbed.operations), runs)


def _check_run(store: KVStore, operation: KVOperation, fault: KVFault, work: Callable[[FaultyStore], object],
               check: Callable[[KVStore, KVRun], object]) -> None:
    faulty = FaultyStore(store, fault_at(operation.number, fault))
    error: BaseException | None = None
    try:
        try:
            work(faulty)
        except (KVCrash, CompactlibError) as ended:
            error = ended
        met = faulty.operations[operation.number - 1:operation.number]
        assert met == [operation], f"{met} instead of {operation}: the work is not deterministic"
        faulty.settle()
        check(store, KVRun(fault, operation, tuple(faulty.acknowledged), error))
    except BaseException as wrong:
        wrong.add_note(f"with the fault {fault.value.value!r} at {operation}, which ended in {error!r}")
        raise
