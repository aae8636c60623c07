# SPDX-License-Identifier: Apache-2.0
"""What fails again and again leaves no more behind than what failed once."""

from __future__ import annotations

import contextlib

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.outcome import Done, Failed
from compactlib.staging.compaction.reclaim.cleanup import TokenCleaner
from compactlib.staging.compaction.reclaim.garbage import collect_garbage
from compactlib.staging.operations.commit import CommitRequest, commit
from compactlib.staging.operations.write import put_many
from compactlib.staging.records.context import StagingContext
from tests.harness.faulty_store import FaultyStore
from tests.staging.branch_world import MAIN, LoggedStore, context_over
from tests.staging.faulty_world import WORK, contents_of, stores_for
from tests.tools.faults.objects_faults import FaultyObjects, ObjectRequest
from tests.tools.faults.plan import Fault


def refused(request: ObjectRequest) -> Fault | None:
    """The object store takes nothing any more."""
    return Fault.REFUSED if request.name == "create" else None


def after_failures(name: str, times: int) -> tuple[StagingContext, LoggedStore, dict[bytes, bytes]]:
    store, objects, behind = stores_for(name)
    before = contents_of(behind)
    for number in range(times):
        with contextlib.suppress(CompactlibError):
            WORK[name][1](context_over(store, FaultyObjects(objects, refused), 100 + number))
    return context_over(store, objects, 90, clock=ManualClock(1_000_000.0)), store, before


def requests_of_a_listing(store: LoggedStore, context: StagingContext) -> int:
    faulty = FaultyStore(store)
    contents_of(StagingContext.over(
        faulty, context.committed, context.repository, options=context.options, clock=context.clock,
        rng=context.rng, events=context.events, observer=context.observer))
    return len(faulty.operations)


@pytest.mark.parametrize("name", ["commit", "commit of a compaction", "compact", "compact again", "merge",
                                  "hard_reset"])
def test_work_that_fails_again_and_again_costs_readers_no_more(name: str) -> None:
    sizes = []
    for times in (2, 12):
        context, store, before = after_failures(name, times)
        cleaner = TokenCleaner(context, grace_seconds=0, orphan_seconds=0)
        for outcome in (cleaner.sweep(), cleaner.run(), collect_garbage(context, grace_seconds=1)):
            assert not isinstance(outcome, Failed), outcome
        sealed = len(context.branches.read(MAIN).record.sealed_tokens)
        cells = sum(not key.startswith(b"commits/") for _, key, _ in store.cells())
        sizes.append((requests_of_a_listing(store, context), sealed, cells))
        # And what was staged is still there for the one that succeeds.
        if name.startswith("com"):
            assert contents_of(context) == before
            commit(context, MAIN, CommitRequest(message="at last"))
            assert contents_of(context) == before
    assert sizes[0] == sizes[1]


def test_commits_between_failures_take_in_what_was_written_then() -> None:
    store, objects, _ = stores_for("commit")
    away = context_over(store, FaultyObjects(objects, refused), 100)
    for number in range(5):
        put_many(away, MAIN, {b"n%d" % number: b"v"})
        for _ in range(3):
            with pytest.raises(CompactlibError):
                commit(away, MAIN, CommitRequest(message="refused"))
    assert len(away.branches.read(MAIN).record.sealed_tokens) <= 5 + 2
    context = context_over(store, objects, 90)
    assert isinstance(commit(context, MAIN, CommitRequest(message="at last")), Done)
    head = context.commits.metarange_of(context.branches.read(MAIN).record.commit_id)
    assert {b"n%d" % number for number in range(5)} < {key for key, _ in context.committed.scan(head)}
