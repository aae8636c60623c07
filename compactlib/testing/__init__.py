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

Nothing here needs more than the core. The Hypothesis strategies are in modules of their own
(`compactlib.testing.raftlog_strategies`), which need the extra `compactlib[testing]`.
"""

from __future__ import annotations

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
from compactlib.testing.faults import FailingFiles
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
from compactlib.testing.range_format_conformance import RangeFormatConformance, check_range_format

__all__ = [
    "Check",
    "CrashFailure",
    "CrashReport",
    "CrashState",
    "ExecutorConformance",
    "FailingFiles",
    "FaultyStore",
    "KVCrash",
    "KVFault",
    "KVFaultReport",
    "KVOperation",
    "KVRun",
    "KVStoreConformance",
    "ObjectStoreConformance",
    "RangeFormatConformance",
    "Recording",
    "RecordingFiles",
    "Recover",
    "check_executor",
    "check_kv_store",
    "check_object_store",
    "check_range_format",
    "explain",
    "explore",
    "explore_kv_faults",
    "explore_recovery",
    "fault_at",
    "record",
    "replay",
]
