# SPDX-License-Identifier: Apache-2.0
"""Writes without an answer, followed by looks or tries that fail: what is unknown stays unknown until it is seen.

A caller who got no answer reads, in order to see what became of the write. If that read fails too, only "unknown" is
true; and if it writes again, and that fails for certain, the first write may still have happened, or come late. This
lets each write of some work lose its answer, done or not, and then each number of the following reads, or writes, fail.

>>> from compactlib.kv import MemoryStore
>>> from compactlib.kv.errors import OutcomeUnknown, StoreFailed
>>> def put(store):
...     try:
...         store.set(b"p", b"k", b"new")
...     except OutcomeUnknown:
...         try:
...             if store.get(b"p", b"k").value != b"new":
...                 raise ValueError("nothing was changed")
...         except StoreFailed as failed:
...             raise ValueError("nothing was changed") from failed
>>> def work(store):
...     try:
...         put(store)
...         return "written"
...     except ValueError as error:
...         return str(error)
>>> def prepared():
...     store = MemoryStore()
...     store.set(b"p", b"k", b"old")
...     return store
>>> def check(store, answer):
...     if answer.returned == "nothing was changed":
...         assert store.get(b"p", b"k").value == b"old", "it was changed"
>>> try:
...     explore_lost_answers(prepared, work, check)
... except AssertionError as failed:
...     print(failed)
...     print(*failed.__notes__)
it was changed
operation 1: set b'p' b'k' had no answer (unknown, done), then 1 looks failed; returned 'nothing was changed'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from compactlib.errors import CompactlibError
from compactlib.kv.store import KVStore
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation

LOST_ANSWERS = (KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE)
"""Ways to lose an answer: the write was carried out, never is, or is carried out a little later."""


@attrs.frozen
class LostAnswer:
    """One run.

    Attributes:
        fault: the outcome of the write.
        operation: the write.
        failed_looks: how many reads after it failed; `None`: all.
        failed_tries: how many writes after it failed; `None`: all.
        acknowledged: what the work passed to `store.acknowledge`.
        returned: what the work returned, if it did.
        error: the library's error that it raised, if it did.
    """

    fault: KVFault
    operation: KVOperation
    failed_looks: int | None
    failed_tries: int | None
    acknowledged: tuple[object, ...]
    returned: object
    error: CompactlibError | None


@attrs.frozen
class LostAnswersReport:
    """What was run.

    Attributes:
        writes: writes of the undisturbed work.
        runs: runs in which one of them had no answer; each was checked.
    """

    writes: int
    runs: int


def explore_lost_answers(make_store: Callable[[], KVStore], work: Callable[[FaultyStore], object],
                         check: Callable[[KVStore, LostAnswer], object], *,
                         failed_looks: Iterable[int | None] = (0, 1, 2, None),
                         faults: Iterable[KVFault] = LOST_ANSWERS) -> LostAnswersReport:
    """Run `work` for each of its writes, each way to lose the answer, and each number of reads that fail after it.

    Give the work a clock that does not wait (`ManualClock`), since looks are repeated with pauses.

    Args:
        make_store: makes the store that a run begins with, always the same.
        work: the code under test; the same operations in every run, up to the fault.
        check: looks at the store, late writes having arrived, and at what the work returned or raised: a caller that
            got the answer that nothing was changed finds nothing changed, one that got a success finds it, and a second
            run works.
        failed_looks: how many reads fail after the write, and in further runs how many writes; `None`: all of them,
            until the work ends.
        faults: the outcomes of the write to try.

    Raises:
        AssertionError: two runs differ before any fault.
        BaseException: what `check` raised, or an error of the work that is not the library's, with a note that says
            which write it was.
    """
    undisturbed = FaultyStore(make_store())
    work(undisturbed)
    looks = tuple(failed_looks)
    writes = [operation for operation in undisturbed.operations if operation.changes]
    runs = 0
    for fault in faults:
        for operation in writes:
            for failing in looks:
                for looks_fail in (True, False) if failing != 0 else (True,):
                    _run(make_store(), work, check, fault, operation, failing, looks_fail=looks_fail)
                    runs += 1
    return LostAnswersReport(len(writes), runs)


def _run(store: KVStore, work: Callable[[FaultyStore], object], check: Callable[[KVStore, LostAnswer], object],
         fault: KVFault, operation: KVOperation, failing: int | None, *, looks_fail: bool) -> None:
    left = failing

    def choose(at: KVOperation) -> KVFault | None:
        nonlocal left
        if at.number == operation.number:
            return fault
        if at.number > operation.number and at.changes is not looks_fail and left != 0:
            left = None if left is None else left - 1
            return KVFault.FAIL
        return None

    faulty = FaultyStore(store, choose)
    returned: object = None
    error: CompactlibError | None = None
    try:
        try:
            returned = work(faulty)
        except CompactlibError as raised:
            error = raised
        met = faulty.operations[operation.number - 1:operation.number]
        assert met == [operation], f"{met} instead of {operation}: the work is not deterministic"
        faulty.settle()
        check(store, LostAnswer(fault, operation, failing if looks_fail else 0, 0 if looks_fail else failing,
                                tuple(faulty.acknowledged), returned, error))
    except BaseException as wrong:
        ended = f"raised {error!r}" if error is not None else f"returned {returned!r}"
        wrong.add_note(f"{operation} had no answer ({fault.value}), then "
                       f"{'all' if failing is None else failing} {'looks' if looks_fail else 'tries'} failed; {ended}")
        raise
