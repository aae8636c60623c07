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
    from compactlib.testing.compactions.conformance import CompactionConformance, check_compaction
    from compactlib.testing.compactions.factory import CompactionFactory
    from compactlib.testing.crash.harness import (
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
    from compactlib.testing.crash.kills import KillFailure, KillReport, LifeFiles, explore_kills
    from compactlib.testing.executors.conformance import ExecutorConformance, check_executor
    from compactlib.testing.faults.clocks import ClockScript, ScriptedClock
    from compactlib.testing.faults.fault_plans import FaultPlan
    from compactlib.testing.faults.jumps import Jump, JumpingClock, JumpsReport, explore_clock_jumps
    from compactlib.testing.faults.kv_faults import (
        FaultyStore,
        KVCrash,
        KVFault,
        KVFaultReport,
        KVOperation,
        KVRun,
        explore_kv_faults,
        fault_at,
    )
    from compactlib.testing.faults.lost_answers import LostAnswer, LostAnswersReport, explore_lost_answers
    from compactlib.testing.faults.objects_faults import FaultyObjects
    from compactlib.testing.faults.plan import Crash, FailingFiles, Fault
    from compactlib.testing.histories.staging_histories import check_staging_backend
    from compactlib.testing.interleave.pauses import SteppedFiles, explore_pauses
    from compactlib.testing.kit.conformance import PromiseBroken
    from compactlib.testing.kit.forks import check_fork
    from compactlib.testing.policies.assignment_views import check_assignment_policy
    from compactlib.testing.policies.fence_conformance import FenceConformance, LockingFenceConformance, check_fence
    from compactlib.testing.policies.need_checks import check_need_source
    from compactlib.testing.policies.policy_checks import (
        check_blob_policy,
        check_raftlog_policy,
        check_scheduler_config,
    )
    from compactlib.testing.policies.policy_conformance import check_policy
    from compactlib.testing.policies.sense_checks import check_sense_policy
    from compactlib.testing.services.async_conformance import AsyncServiceConformance, check_async_service
    from compactlib.testing.services.conformance import ServiceConformance, check_service
    from compactlib.testing.services.factory import AsyncServiceFactory, ServiceFactory, ServiceHooks
    from compactlib.testing.settings import SettingsFailure, SettingsReport, check_settings
    from compactlib.testing.stores.kv_conformance import KVStoreConformance, check_kv_store
    from compactlib.testing.stores.kv_machine import kv_machine
    from compactlib.testing.stores.objects_conformance import ObjectStoreConformance, check_object_store
    from compactlib.testing.stores.range_format_conformance import RangeFormatConformance, check_range_format

__all__ = [
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
    ".services.async_conformance": ("AsyncServiceConformance", "check_async_service"),
    ".faults.clocks": ("ClockScript", "ScriptedClock"),
    ".compactions.conformance": ("CompactionConformance", "check_compaction"),
    ".compactions.factory": ("CompactionFactory",),
    ".kit.conformance": ("PromiseBroken",),
    ".crash.harness": (
        "Check", "CrashFailure", "CrashReport", "CrashState", "Recording", "RecordingFiles", "Recover", "explain",
        "explore", "explore_recovery", "record", "replay"),
    ".executors.conformance": ("ExecutorConformance", "check_executor"),
    ".faults.fault_plans": ("FaultPlan",),
    ".faults.plan": ("Crash", "FailingFiles", "Fault"),
    ".policies.fence_conformance": ("FenceConformance", "LockingFenceConformance", "check_fence"),
    ".kit.forks": ("check_fork",),
    ".faults.jumps": ("Jump", "JumpingClock", "JumpsReport", "explore_clock_jumps"),
    ".crash.kills": ("KillFailure", "KillReport", "LifeFiles", "explore_kills"),
    ".stores.kv_conformance": ("KVStoreConformance", "check_kv_store"),
    ".faults.kv_faults": (
        "FaultyStore", "KVCrash", "KVFault", "KVFaultReport", "KVOperation", "KVRun", "explore_kv_faults",
        "fault_at"),
    ".stores.kv_machine": ("kv_machine",),
    ".faults.lost_answers": ("LostAnswer", "LostAnswersReport", "explore_lost_answers"),
    ".policies.need_checks": ("check_need_source",),
    ".stores.objects_conformance": ("ObjectStoreConformance", "check_object_store"),
    ".faults.objects_faults": ("FaultyObjects",),
    ".interleave.pauses": ("SteppedFiles", "explore_pauses"),
    ".policies.assignment_views": ("check_assignment_policy",),
    ".policies.policy_checks": ("check_blob_policy", "check_raftlog_policy", "check_scheduler_config"),
    ".policies.policy_conformance": ("check_policy",),
    ".stores.range_format_conformance": ("RangeFormatConformance", "check_range_format"),
    ".policies.sense_checks": ("check_sense_policy",),
    ".services.conformance": ("ServiceConformance", "check_service"),
    ".services.factory": ("AsyncServiceFactory", "ServiceHooks", "ServiceFactory"),
    ".settings": ("SettingsFailure", "SettingsReport", "check_settings"),
    ".histories.staging_histories": ("check_staging_backend",),
})
