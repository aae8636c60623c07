# SPDX-License-Identifier: Apache-2.0
"""Lost answers, other settings, clocks that jump, forks: planted mistakes are found, sound code passes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, ClockJumped, Closed, CompactlibError, InvalidInput
from compactlib.files.folder_lock import FolderLock
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown, StoreFailed
from compactlib.runtime import SteadyClock
from compactlib.runtime.look import look_until_seen
from compactlib.testing import Fault, PromiseBroken, check_settings, explore_clock_jumps, explore_lost_answers
from compactlib.testing.faults.jumps import Jump, JumpingClock
from compactlib.testing.faults.lost_answers import LostAnswer
from compactlib.testing.kit.forks import check_fork
from compactlib.testing.settings import SettingsFailure

P = b"p"

# ---------------------------------------------------------------------------------------------------- lost answers


def stored() -> MemoryStore:
    store = MemoryStore()
    store.set(P, b"k", b"old")
    return store


def seen_or_unknown(store: KVStore) -> str:
    try:
        store.set(P, b"k", b"new")
    except OutcomeUnknown as unknown:
        found = look_until_seen(lambda: store.get(P, b"k").value, unknown, clock=ManualClock())
        # It may come late: not to see it says nothing.
        if found != b"new":
            raise
    return "written"


def guesses(store: KVStore) -> str:
    try:
        return seen_or_unknown(store)
    except OutcomeUnknown:
        return "nothing was changed"


def told_is_true(store: KVStore, run: LostAnswer) -> None:
    if run.returned == "written":
        assert store.get(P, b"k").value == b"new"
    elif run.returned == "nothing was changed":
        assert store.get(P, b"k").value == b"old"
    else:
        assert isinstance(run.error, OutcomeUnknown)


def test_whoever_guesses_is_found() -> None:
    report = explore_lost_answers(stored, seen_or_unknown, told_is_true)
    assert (report.writes, report.runs) == (1, 21)
    with pytest.raises(AssertionError) as caught:
        explore_lost_answers(stored, guesses, told_is_true)
    assert "had no answer" in caught.value.__notes__[0]


def test_whoever_takes_a_try_that_failed_for_the_whole_is_found() -> None:
    def tries_twice(store: KVStore) -> str:
        try:
            return seen_or_unknown(store)
        except OutcomeUnknown:
            try:
                store.set(P, b"k", b"new")
            except StoreFailed:
                return "nothing was changed"
        return "written"

    with pytest.raises(AssertionError) as caught:
        explore_lost_answers(stored, tries_twice, told_is_true)
    assert caught.value.__notes__[0].endswith("then 1 tries failed; returned 'nothing was changed'")


def test_each_way_and_each_number_of_failed_looks_and_tries_is_run() -> None:
    runs: list[LostAnswer] = []
    explore_lost_answers(stored, seen_or_unknown, lambda store, run: runs.append(run))
    assert {(run.fault.value, run.failed_looks, run.failed_tries) for run in runs} == {
        (fault, *failed) for fault in (Fault.UNKNOWN_DONE, Fault.UNKNOWN_LOST, Fault.UNKNOWN_LATE)
        for failed in ((0, 0), (1, 0), (2, 0), (None, 0), (0, 1), (0, 2), (0, None))}


# -------------------------------------------------------------------------------------------------- other settings


class Kept:
    """A list whose limit may change between two lives."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.acknowledged = 0


def keeps(kept: Kept, limit: int, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 5)):
        if len(kept.values) < limit:
            kept.values.append(rng.randrange(100))
            kept.acknowledged += 1


def cuts(kept: Kept, limit: int, rng: random.Random) -> None:
    del kept.values[limit:]
    keeps(kept, limit, rng)


def nothing_is_lost(kept: Kept, limit: int) -> None:
    assert len(kept.values) == kept.acknowledged


def test_what_new_limits_take_away_is_found() -> None:
    report = check_settings(Kept, [1, 3, 10], keeps, nothing_is_lost, histories=40)
    assert (report.histories, report.lives) == (40, 160)
    assert 60 < report.changes < 160
    with pytest.raises(SettingsFailure, match="under the settings") as caught:
        check_settings(Kept, [1, 3, 10], cuts, nothing_is_lost)
    # The shortest such history is told: lives that come after the loss are not in it.
    assert caught.value.settings.count(",") < 4
    with pytest.raises(SettingsFailure) as again:
        check_settings(Kept, [1, 3, 10], cuts, nothing_is_lost, histories=1, first_seed=caught.value.seed)
    assert again.value.settings == caught.value.settings


def test_settings_and_lives_are_asked_for() -> None:
    for settings, lives in (([], 3), ([1], 0)):
        with pytest.raises(InvalidInput, match="give at least one of each"):
            check_settings(Kept, settings, keeps, nothing_is_lost, lives=lives)


# ----------------------------------------------------------------------------------------------------- clocks


def leases(make_clock: Callable[[JumpingClock], Callable[[], float]]) -> Callable[[JumpingClock], list[float]]:
    """A lease of 60 seconds taken every ten seconds; how long each lasts, by the right clock."""
    def work(host: JumpingClock) -> list[float]:
        now = make_clock(host)
        left = []
        for _ in range(5):
            left.append(now() + 60 - ManualClock.now(host))
            host.advance(10)
        return left

    return work


def lasts_a_minute(left: list[float] | CompactlibError, jump: Jump) -> None:
    assert not isinstance(left, CompactlibError)
    # Of the first reading nobody can know that it is wrong; what it is taken for ends with the second that is right.
    if jump.readings is not None and jump.reading > 1:
        assert max(left) < 3600, f"a lease lasts {max(left)} seconds"
        assert min(left) > -3600, f"a lease ended {-min(left)} seconds ago"


def test_a_lease_by_a_clock_that_went_wrong_once_is_found() -> None:
    report = explore_clock_jumps(leases(lambda host: SteadyClock(host).steady), lasts_a_minute)
    assert report.runs == report.readings * 4 * 3
    with pytest.raises(AssertionError, match="a lease") as caught:
        explore_clock_jumps(leases(lambda host: host.now), lasts_a_minute)
    assert "the clock was off by +86400 seconds from reading 2 on, for 1 readings" in caught.value.__notes__


def test_errors_of_the_library_are_results() -> None:
    results: list[object] = []

    def work(host: JumpingClock) -> float:
        clock = SteadyClock(host)
        return clock.now()

    explore_clock_jumps(work, lambda result, jump: results.append(type(result)), jumps=[100.0], spans=[1])
    assert results == [ClockJumped, ClockJumped]


# ------------------------------------------------------------------------------------------------------- forks


class Owned:
    """A file of lines in a folder with one writer."""

    def __init__(self, folder: Path) -> None:
        self.lock = FolderLock(folder)
        self.path = folder / "lines"

    def write(self, *, asks: bool) -> None:
        if asks:
            self.lock.require_mine()
        with self.path.open("a") as file:
            file.write("line\n")


def test_a_fork_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    lines: list[int] = []
    refused = check_fork(lambda: Owned(tmp_path), lambda store: store.write(asks=True),
                         lambda store: store.lock.release(),
                         audit=lambda store: lines.append(len(store.path.read_text().splitlines())))
    assert isinstance(refused, Closed)
    assert lines == [3]


def test_a_store_that_lets_a_fork_write_is_found(tmp_path: Path) -> None:
    with pytest.raises(PromiseBroken, match="a fork may not write to what its parent has open"):
        check_fork(lambda: Owned(tmp_path), lambda store: store.write(asks=False), lambda store: store.lock.release())


@pytest.mark.parametrize("lock", [threading.Lock, threading.RLock, threading.Condition])
def test_a_store_that_waits_before_it_asks_whose_it_is_is_found(tmp_path: Path, lock: Callable[[], Any]) -> None:
    """Whoever held the lock when the process was forked does not exist in the fork, which waits for ever."""
    class Locked(Owned):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.turns = {"write": [partial(self._add, lock())]}

        def _add(self, turn: Any) -> None:
            with turn:
                self.lock.require_mine()

        def write(self, *, asks: bool) -> None:
            self.turns["write"][0]()
            super().write(asks=asks)

    with pytest.raises(PromiseBroken, match=r"(?s)whatever other threads did.*\.turns.*it hung.*in _add"):
        check_fork(lambda: Locked(tmp_path), lambda store: store.write(asks=True), lambda store: store.lock.release(),
                   hangs_after_seconds=0.5)


def test_a_store_without_a_lock_is_found(tmp_path: Path) -> None:
    """Its closing in the fork gave nothing up, because nothing was held."""
    def write(store: Owned) -> None:
        if not store.lock.is_mine and store.path.exists():
            raise Busy("refused by hand")
        store.path.touch()

    class Unlocked(Owned):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.lock.release()

    with pytest.raises((PromiseBroken, Busy)):
        check_fork(lambda: Unlocked(tmp_path), write, lambda store: store.lock.release())
