# SPDX-License-Identifier: Apache-2.0
"""Each fault at each operation that some work makes on a key-value store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from compactlib.errors import CompactlibError
from compactlib.kv import KVStore
from tests.harness.faulty_store import FaultyStore, KVCrash, KVFault, KVOperation, fault_at


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
        wrong.add_note(f"with the fault {fault.value!r} at {operation}, which ended in {error!r}")
        raise
