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

The checks of policies and the Hypothesis strategies (`strategies`) are loaded when they are first asked for, and need
the extra `compactlib[testing]`. Nothing else here needs more than the core.
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.testing.assignment_views import check_assignment_policy
    from compactlib.testing.async_service_conformance import AsyncServiceConformance, check_async_service
    from compactlib.testing.clocks import ClockScript, ScriptedClock
    from compactlib.testing.compaction_conformance import CompactionConformance, check_compaction
    from compactlib.testing.compaction_factory import CompactionFactory
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
    from compactlib.testing.forks import check_fork
    from compactlib.testing.jumps import Jump, JumpingClock, JumpsReport, explore_clock_jumps
    from compactlib.testing.kills import KillFailure, KillReport, LifeFiles, explore_kills
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
    from compactlib.testing.kv_machine import kv_machine
    from compactlib.testing.lost_answers import LostAnswer, LostAnswersReport, explore_lost_answers
    from compactlib.testing.need_checks import check_need_source
    from compactlib.testing.objects_conformance import ObjectStoreConformance, check_object_store
    from compactlib.testing.objects_faults import FaultyObjects
    from compactlib.testing.pauses import SteppedFiles, explore_pauses
    from compactlib.testing.policy_checks import check_blob_policy, check_raftlog_policy, check_scheduler_config
    from compactlib.testing.policy_conformance import check_policy
    from compactlib.testing.range_format_conformance import RangeFormatConformance, check_range_format
    from compactlib.testing.sense_checks import check_sense_policy
    from compactlib.testing.service_conformance import ServiceConformance, check_service
    from compactlib.testing.service_factory import AsyncServiceFactory, AsyncServiceHooks, ServiceFactory, ServiceHooks
    from compactlib.testing.settings import SettingsFailure, SettingsReport, check_settings
    from compactlib.testing.staging_histories import check_staging_backend

__all__ = [
    "AsyncServiceHooks",
    "AsyncServiceConformance",
    "AsyncServiceFactory",
    "Check",
    "ClockScript",
    "CompactionConformance",
    "CompactionFactory",
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
    "ServiceHooks",
    "Jump",
    "JumpingClock",
    "JumpsReport",
    "KVCrash",
    "KVFault",
    "KVFaultReport",
    "KVOperation",
    "KVRun",
    "KVStoreConformance",
    "KillFailure",
    "KillReport",
    "LifeFiles",
    "LockingFenceConformance",
    "LostAnswer",
    "LostAnswersReport",
    "ObjectStoreConformance",
    "PromiseBroken",
    "RangeFormatConformance",
    "Recording",
    "RecordingFiles",
    "Recover",
    "ScriptedClock",
    "ServiceConformance",
    "ServiceFactory",
    "SettingsFailure",
    "SettingsReport",
    "SteppedFiles",
    "check_async_service",
    "check_assignment_policy",
    "check_blob_policy",
    "check_compaction",
    "check_executor",
    "check_fence",
    "check_fork",
    "check_kv_store",
    "check_need_source",
    "check_object_store",
    "check_policy",
    "check_raftlog_policy",
    "check_range_format",
    "check_scheduler_config",
    "check_sense_policy",
    "check_service",
    "check_settings",
    "check_staging_backend",
    "explain",
    "explore",
    "explore_clock_jumps",
    "explore_kills",
    "explore_kv_faults",
    "explore_lost_answers",
    "explore_pauses",
    "explore_recovery",
    "fault_at",
    "kv_machine",
    "record",
    "replay",
]

load_lazily(__name__, {
    ".async_service_conformance": ("AsyncServiceConformance", "check_async_service"),
    ".clocks": ("ClockScript", "ScriptedClock"),
    ".compaction_conformance": ("CompactionConformance", "check_compaction"),
    ".compaction_factory": ("CompactionFactory",),
    ".conformance": ("PromiseBroken",),
    ".crash": (
        "Check", "CrashFailure", "CrashReport", "CrashState", "Recording", "RecordingFiles", "Recover", "explain",
        "explore", "explore_recovery", "record", "replay"),
    ".executor_conformance": ("ExecutorConformance", "check_executor"),
    ".fault_plans": ("FaultPlan",),
    ".faults": ("Crash", "FailingFiles", "Fault"),
    ".fence_conformance": ("FenceConformance", "LockingFenceConformance", "check_fence"),
    ".forks": ("check_fork",),
    ".jumps": ("Jump", "JumpingClock", "JumpsReport", "explore_clock_jumps"),
    ".kills": ("KillFailure", "KillReport", "LifeFiles", "explore_kills"),
    ".kv_conformance": ("KVStoreConformance", "check_kv_store"),
    ".kv_faults": (
        "FaultyStore", "KVCrash", "KVFault", "KVFaultReport", "KVOperation", "KVRun", "explore_kv_faults",
        "fault_at"),
    ".kv_machine": ("kv_machine",),
    ".lost_answers": ("LostAnswer", "LostAnswersReport", "explore_lost_answers"),
    ".need_checks": ("check_need_source",),
    ".objects_conformance": ("ObjectStoreConformance", "check_object_store"),
    ".objects_faults": ("FaultyObjects",),
    ".pauses": ("SteppedFiles", "explore_pauses"),
    ".assignment_views": ("check_assignment_policy",),
    ".policy_checks": ("check_blob_policy", "check_raftlog_policy", "check_scheduler_config"),
    ".policy_conformance": ("check_policy",),
    ".range_format_conformance": ("RangeFormatConformance", "check_range_format"),
    ".sense_checks": ("check_sense_policy",),
    ".service_conformance": ("ServiceConformance", "check_service"),
    ".service_factory": ("AsyncServiceHooks", "AsyncServiceFactory", "ServiceHooks", "ServiceFactory"),
    ".settings": ("SettingsFailure", "SettingsReport", "check_settings"),
    ".staging_histories": ("check_staging_backend",),
})
