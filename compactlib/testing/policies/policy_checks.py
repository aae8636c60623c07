# SPDX-License-Identifier: Apache-2.0
"""Try a policy or a configuration of your own against the library's rules, in three lines; failures read as lessons.

>>> from compactlib.raftlog import SeedPolicy
>>> check_raftlog_policy(SeedPolicy(max_sources=4), max_examples=10)

`check_blob_policy` is that of `compactlib.testing.policies.blob_strategies`. The other kits are `check_kv_store`,
`check_object_store` and `check_executor` in `compactlib.testing`.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.lab.raftlog.replay import RaftLogReplay, RaftLogSettings
from compactlib.lab.traces.workloads import AppendMostly, HotCold, Synthetic, Uniform
from compactlib.raftlog.compaction.plan.policy import LogPolicy
from compactlib.raftlog.model.values import SegmentLimits
from compactlib.scheduler.config import SchedulerConfig
from compactlib.testing.histories.log_histories import LogHistory, LogStep, log_histories
from compactlib.testing.histories.scheduler_histories import SchedulerHistory, SchedulerStep, scheduler_histories
from compactlib.testing.kit.examples import as_always
from compactlib.testing.policies.blob_strategies import check_blob_policy
from compactlib.testing.policies.raftlog_strategies import check_policy
from compactlib.testing.scheduler.settings import SimulationSettings
from compactlib.testing.scheduler.simulation import SimulationFailure, simulate

try:
    from hypothesis import given
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying a policy on random input") from None

__all__ = ["check_blob_policy", "check_raftlog_policy", "check_scheduler_config"]

_HISTORIES: tuple[Synthetic, ...] = (
    Uniform(keys=200, writes=2_000, record_bytes=50, spread=1.0), HotCold(keys=200, writes=2_000, record_bytes=50),
    AppendMostly(keys=100, writes=1_000, deletes=0.4, record_bytes=50))
_SETTINGS = RaftLogSettings(limits=SegmentLimits(max_entries=32, max_bytes=2_000), snapshot_every=250, major_every=1)
_MAX_ROUNDS = 64
_LOGS_PER_HISTORY = 4
_SCHEDULER_HISTORIES = 30
_CALM_SECONDS = 600.0


def check_raftlog_policy(policy: LogPolicy, *, max_examples: int = 100) -> None:
    """Try a Raft log's policy on random logs, then over histories short and long; return if it keeps its contract.

    The contract is that of `compactlib.raftlog.compaction.plan.policy`; see `raftlog_strategies.check_policy` for the
    random logs. Then
    it decides for small real logs, which live through random histories of appends, snapshots, compactions and
    restarts, and for long replayed ones: every live entry must stay, and compactions must come to rest.

    Args:
        policy: the policy, configured as it will be used.
        max_examples: how many random logs; a fourth as many are real ones, in temporary folders.

    Raises:
        AssertionError: it does not; the message says which rule, why there is one, and what to do.
    """
    try:
        check_policy(policy, max_examples=max_examples)
        _live_in_a_log(policy, max_examples // _LOGS_PER_HISTORY)
        for history in _HISTORIES:
            _live_through(policy, history)
    except InvalidInput as error:
        raise AssertionError(
            f"{error}. A plan is carried out as it stands: each segment that `choose` is shown goes into exactly one "
            f"group or is left out with a reason, and a group is of neighbours that fit into one segment; start from "
            f"filled_groups(), which cuts such groups") from error


def _live_in_a_log(policy: LogPolicy, max_examples: int) -> None:
    @as_always(max_examples)
    @given(log_histories())
    def entries_stay(history: tuple[LogStep, ...]) -> None:
        with tempfile.TemporaryDirectory(prefix="compactlib-policy-") as folder, \
                LogHistory(folder, copy.deepcopy(policy)) as log:
            for step in history:
                log.step(step)

    if max_examples:
        entries_stay()


def _live_through(policy: LogPolicy, history: Synthetic) -> None:
    replay = RaftLogReplay(policy, _SETTINGS)
    for piece in history.pieces(0):
        replay.feed(piece)
        replay.audit()
    live = replay.snapshot()
    for _ in range(_MAX_ROUNDS):
        if replay.compact(policy).is_empty:
            break
        replay.audit()
    else:
        raise AssertionError(
            f"{policy.name}: after {history}, {_MAX_ROUNDS} compactions in a row each found something to do, "
            f"though nothing was written between them. Each copies for nothing: a group is worth its copies only if "
            f"it joins segments or frees something (is_worthwhile)")
    assert replay.snapshot() == live, f"{policy.name}: compactions after {history} lost live entries"


def check_scheduler_config(config: SchedulerConfig, *, seeds: Iterable[int] = (1, 2, 3)) -> None:
    """Try a scheduler's configuration: by its numbers, over random histories, then in worlds in which much goes wrong.

    In each world replicas crash, messages are lost and repeated, and workers hang; the invariants of
    `docs/scheduler.md` must hold throughout, and once it is calm all work must get done. About a second
    each, and more the longer the configuration's times.

    Args:
        config: as all replicas will run with it.
        seeds: of the worlds.

    Raises:
        AssertionError: it is not fit; the message says what would happen and which setting to change.
    """
    lessons = [*_stuck_work(config), *_cleanup(config)]
    if lessons:
        raise AssertionError("this configuration will hurt:\n" + "\n".join(f"- {lesson}" for lesson in lessons))
    settings = SimulationSettings(config=config, lease_seconds=config.lease_seconds, calm_seconds=_patience(config))
    _live_in_a_service(config)
    for seed in seeds:
        try:
            simulate(seed, settings)
        except SimulationFailure as failure:
            raise AssertionError(
                f"in the simulated world {seed} this configuration fails: {failure.what}. simulate({seed}, "
                f"SimulationSettings(config=config), trace=True) shows the story, docs/scheduler.md what is "
                f"checked") from failure


def _live_in_a_service(config: SchedulerConfig) -> None:
    @as_always(_SCHEDULER_HISTORIES)
    @given(scheduler_histories())
    def rules_hold(history: tuple[SchedulerStep, ...]) -> None:
        world = SchedulerHistory(config)
        for step in history:
            world.step(step)
        world.finish()

    rules_hold()


def _stuck_work(config: SchedulerConfig) -> Iterable[str]:
    for number, level in enumerate(config.levels):
        if not level.max_age_seconds and level.max_blocks > 1:
            yield (f"level {number} waits for {level.max_blocks} blocks however long that takes (max_age_seconds=0): "
                   f"a tenant who stops writing keeps fewer than that uncompacted for ever; give it an age")
    if not config.max_failures:
        yield ("a job that fails is tried for ever (max_failures=0): one poisoned block keeps a worker busy until "
               "an operator notices; give a number, and watch for the jobs that are excluded")
    if config.backoff_seconds > config.max_backoff_seconds:
        yield (f"the first wait after a failure, {config.backoff_seconds} s, is longer than the longest, "
               f"{config.max_backoff_seconds} s (backoff_seconds, max_backoff_seconds)")
    if not config.max_queue_size:
        yield ("the queue has no limit (max_queue_size=0): while workers are away, every replica's memory and every "
               "snapshot grow with each block; give one, jobs beyond it are planned again later")


def _cleanup(config: SchedulerConfig) -> Iterable[str]:
    levels = range(config.cleanup_min_level, config.cleanup_max_level + 1)
    if not config.standalone_cleanup and not any(level in levels for level in range(len(config.levels))):
        yield (f"what was compacted is never deleted: tombstones ride on jobs of levels {config.cleanup_min_level} to "
               f"{config.cleanup_max_level}, of which none is compacted, and standalone_cleanup is off")
    if config.cleanup_delay_seconds < config.lease_seconds:
        yield (f"sources are deleted {config.cleanup_delay_seconds} s after they were compacted, while a worker that "
               f"has lost its lease of {config.lease_seconds} s may still read them; make cleanup_delay_seconds longer "
               f"than the lease, and than the longest query that reads blocks")


def _patience(config: SchedulerConfig) -> float:
    """How long all work may take: each level's wait, each failure's, and the deletions."""
    return (_CALM_SECONDS + 4 * sum(level.max_age_seconds for level in config.levels)
            + config.max_failures * config.max_backoff_seconds + 4 * config.lease_seconds
            + 2 * config.cleanup_delay_seconds + 4 * config.cleanup_lease_seconds)
