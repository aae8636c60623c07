"""Test tools for those who build on compactlib: crash a function at every point, let the disk refuse, try an executor.

>>> import tempfile
>>> from compactlib.files import write_durably
>>> from compactlib.testing import explore, record
>>> def work(folder, files):
...     for number in (b"1", b"2"):
...         write_durably(files, folder / "counter", [number])
...         files.acknowledge(number)
>>> def check(folder, acknowledged):
...     if acknowledged:
...         assert (folder / "counter").read_bytes() >= acknowledged[-1]
>>> with tempfile.TemporaryDirectory() as folder:
...     report = explore(record(folder, work), check)
>>> report.points, report.distinct
(11, 11)

The checks of policies and the Hypothesis strategies (`strategies`) are loaded when they are first asked for; they need
the extra `compactlib[testing]`. Nothing else here needs more than the core.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from compactlib.testing.clocks import ClockScript, ScriptedClock
from compactlib.testing.conformance import PromiseBroken
from compactlib.testing.crash import (
    Check,
    CrashFailure,
    CrashReport,
    CrashState,
    Recording,
    RecordingFiles,
    Recover,
    explain,
    explore,
    explore_recovery,
    record,
    replay,
)
from compactlib.testing.executor_conformance import ExecutorConformance, check_executor
from compactlib.testing.fault_plans import FaultPlan
from compactlib.testing.faults import Crash, FailingFiles, Fault
from compactlib.testing.fence_conformance import FenceConformance, LockingFenceConformance, check_fence
from compactlib.testing.kv_conformance import KVStoreConformance, check_kv_store
from compactlib.testing.kv_faults import (
    FaultyStore,
    KVCrash,
    KVFault,
    KVFaultReport,
    KVOperation,
    KVRun,
    explore_kv_faults,
    fault_at,
)
from compactlib.testing.objects_conformance import ObjectStoreConformance, check_object_store
from compactlib.testing.objects_faults import FaultyObjects
from compactlib.testing.range_format_conformance import RangeFormatConformance, check_range_format

if TYPE_CHECKING:
    from compactlib.testing.kv_machine import kv_machine
    from compactlib.testing.need_checks import check_need_source
    from compactlib.testing.policy_checks import check_blob_policy, check_raftlog_policy, check_scheduler_config
    from compactlib.testing.sense_checks import check_sense_policy
    from compactlib.testing.staging_histories import check_staging_backend

_LAZY = {
    "check_blob_policy": "policy_checks", "check_need_source": "need_checks", "check_raftlog_policy": "policy_checks",
    "check_scheduler_config": "policy_checks", "check_sense_policy": "sense_checks",
    "check_staging_backend": "staging_histories", "kv_machine": "kv_machine"}
"""Where the names are that need Hypothesis."""

__all__ = [
    "Check",
    "ClockScript",
    "Crash",
    "CrashFailure",
    "CrashReport",
    "CrashState",
    "ExecutorConformance",
    "FailingFiles",
    "Fault",
    "FaultPlan",
    "FaultyObjects",
    "FaultyStore",
    "FenceConformance",
    "KVCrash",
    "KVFault",
    "KVFaultReport",
    "KVOperation",
    "KVRun",
    "KVStoreConformance",
    "LockingFenceConformance",
    "ObjectStoreConformance",
    "PromiseBroken",
    "RangeFormatConformance",
    "Recording",
    "RecordingFiles",
    "Recover",
    "ScriptedClock",
    "check_blob_policy",
    "check_executor",
    "check_fence",
    "check_kv_store",
    "check_need_source",
    "check_object_store",
    "check_raftlog_policy",
    "check_range_format",
    "check_scheduler_config",
    "check_sense_policy",
    "check_staging_backend",
    "explain",
    "explore",
    "explore_kv_faults",
    "explore_recovery",
    "fault_at",
    "kv_machine",
    "record",
    "replay",
]


def __getattr__(name: str) -> Any:
    """The names that need Hypothesis, loaded when they are first asked for.

    Raises:
        MissingDependency: Hypothesis is not installed; names the extra.
    """
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
