# SPDX-License-Identifier: Apache-2.0
from compactlib.testing.choices import (
    Choices as Choices,
    drawn_choices as drawn_choices,
    explore as explore,
    repeat as repeat,
    sample as sample,
)
from compactlib.testing.compactions import (
    CompactionConformance as CompactionConformance,
    check_compaction as check_compaction,
)
from compactlib.testing.crash import (
    RecordingFiles as RecordingFiles,
    explore_crashes as explore_crashes,
    explore_kills as explore_kills,
    explore_recovery as explore_recovery,
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
from compactlib.testing.executors import (
    ExecutorConformance as ExecutorConformance,
    check_executor as check_executor,
)
from compactlib.testing.failing import Failing as Failing, Killing as Killing
from compactlib.testing.fences import (
    FenceConformance as FenceConformance,
    check_fence as check_fence,
)
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
    at as at,
)
from compactlib.testing.kv import (
    KVStoreConformance as KVStoreConformance,
    check_kv_store as check_kv_store,
)
from compactlib.testing.kv_state_machine import kv_machine as kv_machine
from compactlib.testing.objects import (
    ObjectStoreConformance as ObjectStoreConformance,
    check_object_store as check_object_store,
)
from compactlib.testing.policies import Views as Views, check_policy as check_policy
from compactlib.testing.promises import PromiseBroken as PromiseBroken
from compactlib.testing.range_formats import (
    RangeFormatConformance as RangeFormatConformance,
    check_range_format as check_range_format,
)
from compactlib.testing.services import (
    ServiceConformance as ServiceConformance,
    ServiceFactory as ServiceFactory,
    ServiceHooks as ServiceHooks,
    check_service as check_service,
)
