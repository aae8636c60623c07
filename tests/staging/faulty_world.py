# SPDX-License-Identifier: Apache-2.0
"""One repository whose requests to either store can crash, fail or stay without an answer; and what must hold then."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.objects import MemoryObjects
from compactlib.outcome import Done, Failed
from compactlib.staging import Record
from compactlib.staging.compaction.reclaim.cleanup import TokenCleaner
from compactlib.staging.compaction.reclaim.garbage import collect_garbage
from compactlib.staging.errors import DirtyBranch, PreconditionFailed
from compactlib.staging.operations.commit import CommitRequest, commit
from compactlib.staging.operations.conditional import write_if
from compactlib.staging.operations.head import HeadBuilder, discard_and_move, move_head
from compactlib.staging.operations.listing import ListRequest
from compactlib.staging.operations.read import list_branch
from compactlib.staging.operations.reset import reset, reset_key, reset_prefix
from compactlib.staging.operations.write import delete_many, put_many
from compactlib.staging.records.context import StagingContext
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.branch_world import MAIN, SOURCE, K, LoggedStore, cache_of, context_over, prepare
from tests.staging.world import compact_now
from tests.tools.faults.objects_faults import FaultyObjects, ObjectRequest
from tests.tools.faults.plan import Crash, Fault

Contents = dict[bytes, bytes]

OBJECT_FAULTS = (KVFault.CRASH_BEFORE, KVFault.CRASH_AFTER, KVFault.FAIL, KVFault.UNKNOWN_DONE)
"""What can happen to a request of an object store."""


class Trouble:
    """Counts the requests to both stores together; the one with the chosen number meets a fault."""

    def __init__(self, number: int | None = None, fault: KVFault | None = None) -> None:
        self.count = 0
        self.met: str | None = None
        self.requests: list[str] = []
        self.conditional: list[bool] = []
        self.on_objects: list[bool] = []
        self._number = number
        self._fault = fault

    def of_store(self, operation: KVOperation) -> KVFault | None:
        return self._next(str(operation), operation.conditional, False)

    def of_objects(self, request: ObjectRequest) -> Fault | None:
        fault = self._next(f"{request.name} {request.key}", False, True)
        return None if fault is None else Fault(fault.value)

    def _next(self, told: str, conditional: bool, on_objects: bool) -> KVFault | None:
        self.count += 1
        self.requests.append(told)
        self.conditional.append(conditional)
        self.on_objects.append(on_objects)
        if self.count != self._number:
            return None
        self.met = told
        return self._fault


def _merge(context: StagingContext) -> object:
    source = context.branches.read(SOURCE).record.commit_id
    return move_head(context, MAIN, cache_of(context), HeadBuilder(context, message="m", metadata=None).merge(source),
                     operation="merge")


def _hard_reset(context: StagingContext) -> object:
    target = next(commit_id for commit_id, found in context.commits.list() if found.message == "first")
    return discard_and_move(context, MAIN, lambda head: target)


WORK: dict[str, tuple[str, Callable[[StagingContext], object]]] = {
    "put": ("sealed", lambda context: put_many(context, MAIN, {K: b"P"})),
    "delete": ("sealed", lambda context: delete_many(context, MAIN, [K])),
    "put_if": ("clean", lambda context: write_if(context, MAIN, K, Record.of(b"I"), None)),
    "commit": ("sealed", lambda context: commit(context, MAIN, CommitRequest(message="c"))),
    "commit of a compaction": ("compacted", lambda context: commit(context, MAIN, CommitRequest(message="c"))),
    "compact": ("sealed", compact_now),
    "compact again": ("compacted and staged", compact_now),
    "cleanup": ("dropped", lambda context: TokenCleaner(context, grace_seconds=0).run()),
    "sweep": ("dropped", lambda context: TokenCleaner(context, grace_seconds=0, orphan_seconds=0).sweep()),
    "collect": ("dropped", lambda context: collect_garbage(context, grace_seconds=0)),
    "reset": ("sealed", lambda context: reset(context, MAIN)),
    "reset over a compaction": ("compacted", lambda context: reset(context, MAIN)),
    "reset_key": ("compacted", lambda context: reset_key(context, MAIN, K)),
    "reset_prefix": ("sealed", lambda context: reset_prefix(context, MAIN, b"k", cache_of(context))),
    "merge": ("clean", _merge),
    "hard_reset": ("compacted", _hard_reset),
}
"""What is done, from which state."""


@attrs.define
class Run:
    """One run with one fault."""

    name: str
    store: LoggedStore
    objects: MemoryObjects
    faulty: FaultyStore
    trouble: Trouble
    before: Contents
    error: BaseException | None = None

    @property
    def acknowledged(self) -> bool:
        return self.error is None

    def contents(self) -> Contents:
        return contents_of(self.fresh())

    def fresh(self, seed: int = 50) -> StagingContext:
        """What a process started afterwards sees. Its clock is past every grace period."""
        return context_over(self.store, self.objects, seed, clock=ManualClock(100_000.0))


def contents_of(context: StagingContext, branch: str = MAIN) -> Contents:
    page = list_branch(context, branch, ListRequest(limit=100))
    return {entry.key: entry.record.data for entry in page.entries if entry.record is not None}


def start(name: str, number: int | None = None, fault: KVFault | None = None) -> Run:
    """Prepare, and do the work with a fault at the request of this number."""
    work = WORK[name][1]
    store, objects, behind = stores_for(name)
    trouble = Trouble(number, fault)
    run = Run(name, store, objects, FaultyStore(store, trouble.of_store), trouble, contents_of(behind))
    context = context_over(run.faulty, FaultyObjects(objects, trouble.of_objects), 8)
    try:
        result = work(context)
        if isinstance(result, Failed):
            run.error = result.error
    except (Crash, CompactlibError) as error:
        run.error = error
    run.faulty.settle()
    return run


def stores_for(name: str) -> tuple[LoggedStore, MemoryObjects, StagingContext]:
    """The stores as this work finds them, and a process that looks on from behind."""
    setup = WORK[name][0]
    store, objects = LoggedStore(), MemoryObjects(clock=ManualClock(0.0))
    prepared = prepare("compacted" if setup == "compacted and staged" else "sealed" if setup == "dropped" else setup)
    for partition, key, value in prepared.cells:
        store.set(partition, key, value)
    for key_text, data in prepared.objects:
        objects.create(key_text, data)
    behind = context_over(store, objects, 7)
    if setup == "compacted and staged":
        put_many(behind, MAIN, {K: b"2"})
    if setup == "dropped":
        assert isinstance(compact_now(behind), Done)
        put_many(behind, MAIN, {b"x": b"1"})
        assert isinstance(compact_now(behind), Done)
        behind.tokens.issue(MAIN)  # an orphan
    return store, objects, behind


def check_run(run: Run, after: Contents) -> None:
    """Nothing is lost, nothing is half done, and the next run succeeds."""
    now = run.contents()
    assert now == after or (now == run.before and not run.acknowledged), (
        f"{now} is neither {run.before} nor {after}; it ended in {run.error!r}")
    _check_books(run)
    # Once more: whatever was left half done is finished or absorbed.
    again = WORK[run.name][1]
    context = run.fresh(51)
    try:
        result = again(context)
    except PreconditionFailed:
        assert run.name == "put_if"
        assert now == after
        result = None
    except DirtyBranch as error:
        raise AssertionError(f"the second {run.name} found a dirty branch") from error
    assert not isinstance(result, Failed), result
    assert run.contents() == after
    put_many(context, MAIN, {b"y": b"1"})
    assert isinstance(commit(context, MAIN, CommitRequest(message="afterwards")), Done)
    _check_swept(run, {**after, b"y": b"1"})


def _check_books(run: Run) -> None:
    context = run.fresh()
    record = context.branches.read(MAIN).record
    record.audit()
    marked = {mark.token for mark in context.tokens.dropped()}
    assert not marked & set(record.tokens), f"marked, but in use: {marked & set(record.tokens)}"


def _check_swept(run: Run, expected: Contents) -> None:
    """After sweep, cleanup and collection only what is needed is left, and it reads right."""
    context = run.fresh(52)
    cleaner = TokenCleaner(context, grace_seconds=0, orphan_seconds=0)
    for outcome in (cleaner.sweep(), cleaner.run(), collect_garbage(context, grace_seconds=1)):
        assert not isinstance(outcome, Failed), outcome
    named = {token for found in context.branches.list() for token in found.record.tokens}
    assert {mark.token for mark in context.tokens.registered()} == named
    left = {partition for partition, _, _ in run.store.cells() if partition.startswith(b"stg-")}
    assert left <= {token.encode() for token in named}, "entries of dropped tokens are left"
    assert contents_of(run.fresh(53)) == expected
    main = run.fresh(54).branches.read(MAIN).record
    found = run.fresh(55).committed.scan(run.fresh(55).commits.metarange_of(main.commit_id))
    assert {key: record.data for key, record in found} == expected


def faults_of(run: Run, *faults: KVFault) -> Iterator[tuple[int, KVFault]]:
    """Each request of an undisturbed run with each fault that it can meet."""
    for number in range(1, run.trouble.count + 1):
        for fault in faults:
            if run.trouble.on_objects[number - 1] and fault not in OBJECT_FAULTS:
                continue
            if fault is KVFault.CONFLICT and not run.trouble.conditional[number - 1]:
                continue
            yield number, fault


def explore_faults(name: str, *faults: KVFault) -> int:
    """Every fault at every request; gives how many runs."""
    undisturbed = start(name)
    assert undisturbed.error is None, undisturbed.error
    after = undisturbed.contents()
    check_run(undisturbed, after)
    count = 0
    for number, fault in faults_of(undisturbed, *faults):
        run = start(name, number, fault)
        try:
            assert run.trouble.met == undisturbed.trouble.requests[number - 1], "the work is not deterministic"
            check_run(run, after)
        except BaseException as wrong:
            wrong.add_note(f"{name} with {fault.value!r} at request {number}: {run.trouble.met}; {run.error!r}")
            raise
        count += 1
    return count
