# SPDX-License-Identifier: Apache-2.0
"""Test tools for hosts: crash a function at every point, let the disk refuse, test a store, an executor, a policy.

`compactlib.testing.views` needs the extra `compactlib[testing]`; nothing else here needs more than the core.
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.testing.choices import Choices as Choices, explore as explore, sample as sample
    from compactlib.testing.compactions import (
        CompactionConformance as CompactionConformance,
        check_compaction as check_compaction,
    )
    from compactlib.testing.crash import (
        RecordingFiles as RecordingFiles,
        explore_crashes as explore_crashes,
        explore_kills as explore_kills,
        record as record,
        repeat_crash as repeat_crash,
    )
    from compactlib.testing.disk_model import Recording as Recording
    from compactlib.testing.driver import (
        Change as Change,
        Driver as Driver,
        HostLock as HostLock,
        Journal as Journal,
        World as World,
        WorldClock as WorldClock,
    )
    from compactlib.testing.executors import ExecutorConformance as ExecutorConformance
    from compactlib.testing.failing import Failing as Failing, Killing as Killing
    from compactlib.testing.fences import FenceConformance as FenceConformance
    from compactlib.testing.hazards import (
        HAZARDS as HAZARDS,
        Bench as Bench,
        Effort as Effort,
        check_hazards as check_hazards,
    )
    from compactlib.testing.in_front import (
        FilesInFront as FilesInFront,
        Killed as Killed,
        ObjectsInFront as ObjectsInFront,
        Request as Request,
        StoreInFront as StoreInFront,
    )
    from compactlib.testing.interrupts import Interrupted as Interrupted
    from compactlib.testing.kv import KVStoreConformance as KVStoreConformance
    from compactlib.testing.objects import ObjectStoreConformance as ObjectStoreConformance
    from compactlib.testing.policies import Views as Views, check_policy as check_policy
    from compactlib.testing.promises import PromiseBroken as PromiseBroken
    from compactlib.testing.range_formats import RangeFormatConformance as RangeFormatConformance
else:
    offer(__name__, {
        "compactlib.testing.choices": "Choices explore sample",
        "compactlib.testing.compactions": "CompactionConformance check_compaction",
        "compactlib.testing.crash": "RecordingFiles explore_crashes explore_kills record repeat_crash",
        "compactlib.testing.disk_model": "Recording",
        "compactlib.testing.driver": "Change Driver HostLock Journal World WorldClock",
        "compactlib.testing.executors": "ExecutorConformance",
        "compactlib.testing.failing": "Failing Killing",
        "compactlib.testing.fences": "FenceConformance",
        "compactlib.testing.hazards": "HAZARDS Bench Effort check_hazards",
        "compactlib.testing.interrupts": "Interrupted",
        "compactlib.testing.in_front": "FilesInFront Killed ObjectsInFront Request StoreInFront",
        "compactlib.testing.kv": "KVStoreConformance",
        "compactlib.testing.objects": "ObjectStoreConformance",
        "compactlib.testing.policies": "Views check_policy",
        "compactlib.testing.promises": "PromiseBroken",
        "compactlib.testing.range_formats": "RangeFormatConformance",
    })
