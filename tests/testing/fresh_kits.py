# SPDX-License-Identifier: Apache-2.0
"""Every check of `compactlib.testing` on the library's own implementations, with other examples in each round.

`python -m tests.testing.fresh_kits --rounds 1000` runs them all (`make fresh`); a name or several run only those.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import attrs

import compactlib.blobstore as policies
from compactlib.blobstore.compaction.plan.policies.declining_cost import DecliningCost
from compactlib.executors import LocalExecutor
from compactlib.kv import KVStore, MemoryStore, SqliteStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.raftlog import CostPolicy, RaPolicy, SeedPolicy
from compactlib.scheduler import FileFence, KVFence, LevelConfig, MemoryFence, SchedulerConfig
from compactlib.staging import AnyOf, DeletesPolicy, ListingCostPolicy, ParquetFormat, PlainFormat, SealedTokensPolicy
from compactlib.testing import (
    check_blob_policy,
    check_executor,
    check_fence,
    check_kv_store,
    check_need_source,
    check_object_store,
    check_raftlog_policy,
    check_range_format,
    check_scheduler_config,
    check_sense_policy,
    check_staging_backend,
)
from compactlib.testing.kit.fresh import fresh_examples
from tests.testing.test_testing_checks import Backups

Check: TypeAlias = Callable[[int, Path], object]
"""One round with a number; gets an empty folder."""

_SMALL = SchedulerConfig(levels=(LevelConfig(max_blocks=4, max_age_seconds=30),))
_BLOB_POLICIES = (
    policies.StatsBased(), policies.StatsBased(min_used_fraction=0.0, min_reclaimed_segments=2, weight_on_benefit=True),
    policies.StatsBased(middle_range_interval_seconds=86_400.0), policies.CompactAll(skip_valid="ends"),
    policies.CompactAll(skip_valid="all"), policies.Hybrid(),
    policies.Hybrid(usual=policies.Greedy(), every_seconds=0.0, spread_seconds=10.0), policies.Greedy(),
    policies.Greedy(fill_outputs=True), policies.CostBenefit(min_reclaimed_segments=2), policies.ExpiryForecast(),
    policies.ExpiryForecast(max_dying_fraction=0.0), policies.CopyBudget(max_copied_bytes=1_500),
    policies.DChoices(seed=3), policies.DChoices(choices=1, seed=3), DecliningCost(min_reclaimed_segments=2))
# The check of a policy is one of random views, and of one real store for every four of them.
_VIEWS = 4


def _blob_policies(number: int, folder: Path) -> None:
    for policy in _BLOB_POLICIES:
        check_blob_policy(policy, max_examples=_VIEWS)
    check_blob_policy(policies.CompactAll(), comes_to_rest=False, max_examples=_VIEWS)
    # Not a policy's business alone: whatever has no need to be compacted is, which finds most in a store.
    check_blob_policy(policies.CompactAll(min_used_fraction=0.0), comes_to_rest=False, max_examples=2 * _VIEWS)


def _raftlog_policies(number: int, folder: Path) -> None:
    for policy in (SeedPolicy(), SeedPolicy(max_sources=3), RaPolicy(), CostPolicy()):
        check_raftlog_policy(policy, max_examples=_VIEWS)


def _scheduler(number: int, folder: Path) -> None:
    for config in (_SMALL, attrs.evolve(_SMALL, lease_seconds=2.0)):
        check_scheduler_config(config, seeds=(1_000_000 + number,))


def _sense(number: int, folder: Path) -> None:
    for policy in (AnyOf(), DeletesPolicy(1), SealedTokensPolicy(3), ListingCostPolicy(50)):
        check_sense_policy(policy, max_examples=10)


def _needs(number: int, folder: Path) -> None:
    source = Backups
    check_need_source(source, hold=source.begin, release=source.end, max_examples=10)


def _kv_memory(number: int, folder: Path) -> None:
    check_kv_store(lambda at, page_size=None: MemoryStore(page_size=page_size or 1000), folder, effort_percent=5)


def _kv_sqlite(number: int, folder: Path) -> None:
    def make(at: Path, page_size: int | None = None) -> KVStore:
        at.mkdir(exist_ok=True)
        return SqliteStore(at / "kv.sqlite", page_size=page_size or 1000, synchronous="normal", busy_seconds=0.0)

    check_kv_store(make, folder, shared=True, effort_percent=5)


def _kv_machine(number: int, folder: Path) -> None:
    from hypothesis import HealthCheck, seed, settings
    from hypothesis.stateful import run_state_machine_as_test

    from compactlib.testing import kv_machine

    machine = seed(number)(kv_machine(MemoryStore))
    run_state_machine_as_test(machine, settings=settings(max_examples=2, deadline=None, database=None,
                                                         suppress_health_check=list(HealthCheck)))


def _objects(number: int, folder: Path) -> None:
    for name, make in (("memory", lambda at: MemoryObjects()), ("local", LocalObjects)):
        (folder / name).mkdir()
        check_object_store(make, folder / name, creators=3)


def _fences(number: int, folder: Path) -> None:
    for name, make in (("memory", lambda at: MemoryFence()), ("file", lambda at: FileFence(at / "fence")),
                       ("kv", lambda at: KVFence(MemoryStore()))):
        (folder / name).mkdir()
        check_fence(make, folder / name)


def _executors(number: int, folder: Path) -> None:
    for workers in (1, 3):
        (folder / str(workers)).mkdir()
        check_executor(partial(LocalExecutor, workers), folder / str(workers))


def _range_formats(number: int, folder: Path) -> None:
    check_range_format(PlainFormat())
    check_range_format(ParquetFormat(rows_per_group=7))


def _staging(number: int, folder: Path) -> None:
    check_staging_backend(MemoryStore, MemoryObjects, max_examples=3)


KITS: dict[str, Check] = {
    "blob policies": _blob_policies, "raftlog policies": _raftlog_policies, "scheduler": _scheduler, "sense": _sense,
    "needs": _needs, "kv memory": _kv_memory, "kv sqlite": _kv_sqlite, "kv machine": _kv_machine, "objects": _objects,
    "fences": _fences, "executors": _executors, "range formats": _range_formats, "staging": _staging,
}


def run_rounds(name: str, numbers: range) -> Iterator[int]:
    """Run rounds of a kit, and yield each number that was passed.

    Raises:
        AssertionError: a round failed; the note says which.
    """
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix="compactlib-fresh-") as folder, fresh_examples(number):
            try:
                KITS[name](number, Path(folder))
            except BaseException as error:
                error.add_note(f"kit {name!r}, round {number}: python -m tests.testing.fresh_kits --rounds 1 "
                               f"--first {number} {name!r} runs it again")
                raise
        yield number


def main() -> None:
    """Run the kits named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kits", nargs="*", default=list(KITS), help=f"some of: {', '.join(KITS)}")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--first", type=int, help="the first round's number; another one each time if not given")
    chosen = parser.parse_args()
    first = random.SystemRandom().randrange(1 << 32) if chosen.first is None else chosen.first
    for name in chosen.kits:
        began = time.monotonic()
        passed = sum(1 for _ in run_rounds(name, range(first, first + chosen.rounds)))
        seconds = time.monotonic() - began
        sys.stdout.write(f"{name}: {passed} rounds from {first} on passed in {seconds:.0f} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
