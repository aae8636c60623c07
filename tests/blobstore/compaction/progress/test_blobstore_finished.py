"""Places of the log led through the history of compactions: nothing that follows a place is ever missed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.blobstore.compaction.progress.compaction_file import done_name
from compactlib.blobstore.compaction.progress.finished import FinishedCompactions
from compactlib.blobstore.errors import HistoryLost
from compactlib.blobstore.model.names import LogPosition
from compactlib.blobstore.store.replication import ReplicationToken
from compactlib.blobstore.store.store import BlobStore
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.runtime.budget import Budget
from tests.blobstore.compaction_stores import (
    RETENTION,
    START,
    compact_all,
    delete_some,
    done,
    fill,
    garbage_store,
    names,
    plan_of,
)


def placed(store: BlobStore) -> list[tuple[LogPosition, int]]:
    """Every record: where it lies, and its sequence."""
    snapshot = store.snapshot()
    return [(entry.position, entry.sequence) for info in snapshot.segments for entry in snapshot.entries_of(info.name)]


def behind(store: BlobStore, position: LogPosition) -> set[int]:
    """What a reader finds that goes on from a place."""
    return {sequence for place, sequence in placed(store) if place >= position}


@settings(max_examples=6)
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_whoever_goes_on_from_the_rebuilt_place_misses_nothing(tmp_path_factory: pytest.TempPathFactory, seed: int,
                                                               swaps: int, every: int, rounds: int) -> None:
    rng = random.Random(seed)
    clock = ManualClock(START)
    folder = tmp_path_factory.mktemp("history") / "store"
    with garbage_store(folder, clock, seed=seed, count=40, swap_segments=swaps) as store:
        before = placed(store)
        for turn in range(rounds):
            chosen = store.snapshot().eligible()[turn % 2::every]
            if chosen:
                done(store.compact(plan_of(store, chosen)))
            delete_some(store, [number for number in range(0, 40, 3) if number % 9 == 3 * turn], clock)
            fill(store, 5, rng, first=1000 * (turn + 1))
        history = FinishedCompactions.read(folder)
        left = {sequence for _, sequence in placed(store)}
        for position, _ in before:
            owed = {sequence for place, sequence in before if place >= position} & left
            rebuilt = history.rebuild(position, 0)
            assert owed <= behind(store, rebuilt), (position, rebuilt)


def test_a_rebuilt_place_is_close(tmp_path: Path) -> None:
    """Peers need not start from zero."""
    with garbage_store(tmp_path / "store", ManualClock(START), count=60) as store:
        compact_all(store)
        kept = [(place, sequence) for place, sequence in placed(store) if place.segment.generation]
        history = FinishedCompactions.read(tmp_path / "store")
        with garbage_store(tmp_path / "other", ManualClock(START), count=60) as same:
            old = {sequence: place for place, sequence in placed(same)}
        for place, sequence in kept:
            again = [other for at, other in kept if history.rebuild(old[sequence], 0) <= at < place]
            assert len(again) <= 1


def test_a_place_from_after_the_compaction_stays(tmp_path: Path) -> None:
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        compact_all(store)
        history = FinishedCompactions.read(tmp_path / "store")
        assert history.number > 1
        position = LogPosition(names("1_1")[0], 99)
        assert history.rebuild(position, history.number) == position
        with pytest.raises(InvalidInput, match="not in the past"):
            history.rebuild(position, history.number + 1)


def test_what_is_not_known_any_more_says_so(tmp_path: Path) -> None:
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        compact_all(store)
        (tmp_path / "store" / done_name(1)).write_bytes(b"broken")
        history = FinishedCompactions.read(tmp_path / "store")
        assert len(history.damaged) == 1
        with pytest.raises(HistoryLost) as caught:
            history.rebuild(LogPosition(names("1_0")[0], 80), 0)
        assert caught.value.number == 1


def test_the_compaction_in_progress_counts_with_its_ended_cycles(tmp_path: Path) -> None:
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        before = placed(store)
        store.compact(plan_of(store), budget=Budget(total_bytes=3000))
        history = FinishedCompactions.read(tmp_path / "store")
        assert history.number >= 1
        left = {sequence for _, sequence in placed(store)}
        for position, _ in before:
            owed = {sequence for place, sequence in before if place >= position} & left
            assert owed <= behind(store, history.rebuild(position, 0))


def test_the_stores_own_tokens_stay_valid(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with garbage_store(tmp_path / "store", clock) as store:
        everything = store.entries_since()
        token = ReplicationToken(store.incarnation, 20)
        owed = {entry.id for entry in store.entries_since(token).entries}
        clock.advance(RETENTION)
        compact_all(store)
        after = {entry.id for entry in store.entries_since(token).entries}
        assert after <= owed
        assert store.entries_since(everything.token).entries == ()
