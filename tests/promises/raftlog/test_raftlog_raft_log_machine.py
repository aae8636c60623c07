# SPDX-License-Identifier: Apache-2.0
"""`RaftLog` against a plain model: any operations in any order, with any crash between them."""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from compactlib.errors import Busy, Closed, StorageError
from compactlib.files import Files
from compactlib.raftlog import RaftLogStore
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.harness.effort import Effort
from tests.harness.failing_files import FailingFiles
from tests.harness.raft_world import (
    KINDS,
    LOGS,
    Operation,
    RaftModel,
    World,
    check_after_crash,
    check_log,
    found_state,
    random_operations,
    store_options,
)
from tests.harness.recoveries import explore_recovery

OPERATION = st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 99), st.integers(0, 99))
OPERATIONS = st.lists(OPERATION, min_size=1, max_size=30)
RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=40, deadline=None, suppress_health_check=RELAXED)
@given(OPERATIONS, st.sampled_from((0, 3)))
def test_any_order_of_operations_agrees_with_the_model(operations: list[Operation], keep_trailing: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "store", options=store_options(keep_trailing=keep_trailing))
        for operation in operations:
            world.perform(operation)
            world.check()
        world.close()


def recorded(folder: Path, operations: list[Operation], keep_trailing: int) -> tuple[object, dict[str, RaftModel]]:
    models = {name: RaftModel() for name in LOGS}

    def run(inside: Path, files: RecordingFiles) -> None:
        world = World(inside / "store", files, files.acknowledge, models,
                      store_options(files, keep_trailing=keep_trailing))
        world.run(operations)
        world.close()

    return record(folder, run), models


def crash_everywhere(folder: Path, operations: list[Operation], *, states: int, recoveries: int = 0,
                     seed: int = 0, every: int = 1) -> None:
    """Crash at every step of the operations, or at some; then crash the recoveries too."""
    recording, models = recorded(folder, operations, seed % 2 * 3)
    check = check_after_crash(models)

    def inside(found: Path, acknowledged: object) -> None:
        if (found / "store").exists():
            check(found / "store", acknowledged)  # type: ignore[arg-type]

    def recover(found: Path, files: Files) -> None:
        if (found / "store").exists():
            RaftLogStore(found / "store", store_options(files)).close()

    points = range(seed % every, len(recording.operations) + 1, every)  # type: ignore[attr-defined]
    explore_crashes(recording, inside, seed=seed, limit_per_point=states, points=points)  # type: ignore[arg-type]
    if recoveries:
        explore_recovery(recording, recover, inside, seed=seed, recoveries=recoveries,  # type: ignore[arg-type]
                         limit_per_point=3)


STORIES: dict[str, list[Operation]] = {
    "append, sync and roll over": [("append", 0, 4, 5), ("append", 1, 2, 3), ("sync", 0, 0, 0), ("overwrite", 0, 2, 5),
                                   ("append", 0, 4, 6), ("sync", 0, 0, 0)],
    "flush, snapshot, minor and major": [("append", 0, 4, 5), ("append", 0, 4, 6), ("append", 0, 4, 6),
                                         ("flush", 0, 0, 0), ("snapshot", 0, 0, 1), ("major", 0, 0, 0),
                                         ("append", 0, 4, 1), ("flush", 0, 0, 0), ("snapshot", 0, 0, 2),
                                         ("minor", 0, 0, 0)],
    "install": [("append", 0, 4, 1), ("flush", 0, 0, 0), ("append", 0, 4, 1), ("install", 0, 3, 4), ("append", 0, 2, 2),
                ("flush", 0, 0, 0), ("install", 0, 2, 1), ("major", 0, 0, 0)],
    "what is taken back stays so": [("append", 0, 4, 1), ("append", 0, 4, 1), ("flush", 0, 0, 0), ("reset", 0, 6, 0),
                                    ("flush", 0, 0, 0), ("append", 0, 1, 1), ("reset", 0, 8, 0), ("flush", 0, 0, 0)],
}


@pytest.mark.parametrize("name", STORIES)
def test_a_crash_at_every_step_loses_nothing_confirmed(name: str, tmp_path: Path, effort: Effort) -> None:
    crash_everywhere(tmp_path, STORIES[name], states=effort(2, 12), seed=len(name), every=effort(4, 1))


@settings(max_examples=2, deadline=None, suppress_health_check=RELAXED)
@given(st.lists(OPERATION, min_size=4, max_size=12), st.integers(0, 1000))
def test_crashes_in_work_and_recovery_lose_nothing_confirmed(operations: list[Operation],
                                                             seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        crash_everywhere(Path(folder), operations, states=2, recoveries=4, seed=seed)


def refuse_steps(tmp_path: Path, seeds: range, every: int) -> None:
    """A full disk, and a broken one, at a sample of the steps of some lives."""
    for seed in seeds:
        operations = random_operations(random.Random(20 + seed), 14)
        counting = FailingFiles()
        World(tmp_path / f"count-{seed}", counting).run(operations)
        for fail_at in range(1, counting.count + 1, every):
            for number in (errno.ENOSPC, errno.EIO):
                refuse(tmp_path / f"{seed}-{fail_at}-{number}", operations,
                       FailingFiles(fail_at=fail_at, errno=number, sticky=True, short_write=True))


def test_a_disk_that_refuses_any_step_loses_nothing_confirmed(tmp_path: Path) -> None:
    refuse_steps(tmp_path, range(2), 13)


@pytest.mark.soak
def test_soak_a_disk_that_refuses_any_step(tmp_path: Path) -> None:
    refuse_steps(tmp_path, range(30), 1)


def refuse(folder: Path, operations: list[Operation], files: FailingFiles) -> None:
    """Work until the disk refuses an operation; then read the log on a sound disk."""
    promised = dict.fromkeys(LOGS, 0)
    models = {name: RaftModel() for name in LOGS}
    world = None
    with contextlib.suppress(StorageError, Closed, Busy):
        world = World(folder, files, promised.update, models)
        world.run(operations)
    if world is not None:
        with contextlib.suppress(StorageError, Closed, Busy):
            world.store.close()
    with RaftLogStore(folder, store_options()) as store:
        for name in LOGS:
            check_log(store.log(name), found_state(store.log(name), models[name].history, promised[name]))
        store.audit()


@pytest.mark.soak
@settings(max_examples=3000, deadline=None, suppress_health_check=RELAXED)
@given(OPERATIONS, st.sampled_from((0, 3)))
def test_soak_any_order_of_operations(operations: list[Operation], keep_trailing: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "store", options=store_options(keep_trailing=keep_trailing))
        for operation in operations:
            world.perform(operation)
            world.check()
        world.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_soak_crashes_in_any_mixture(seed: int, tmp_path: Path) -> None:
    operations = random_operations(random.Random(seed), 20)
    crash_everywhere(tmp_path, operations, states=12, recoveries=20, seed=seed)
