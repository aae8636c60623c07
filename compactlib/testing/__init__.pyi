# SPDX-License-Identifier: Apache-2.0
from compactlib.testing.choices import (
    Choices as Choices,
    drawn_choices as drawn_choices,
    explore as explore,
    repeat as repeat,
    sample as sample,
)
from compactlib.testing.compactions.conformance import (
    CompactionConformance as CompactionConformance,
    check_compaction as check_compaction,
)
from compactlib.testing.compactions.factory import CompactionFactory as CompactionFactory
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
from compactlib.testing.executors.conformance import (
    ExecutorConformance as ExecutorConformance,
    check_executor as check_executor,
)
from compactlib.testing.faults.jumps import explore_clock_jumps as explore_clock_jumps
from compactlib.testing.faults.kv_faults import (
    FaultyStore as FaultyStore,
    KVFault as KVFault,
    explore_kv_faults as explore_kv_faults,
)
from compactlib.testing.faults.lost_answers import explore_lost_answers as explore_lost_answers
from compactlib.testing.faults.plan import FailingFiles as FailingFiles, Fault as Fault
from compactlib.testing.hazards import (
    HAZARDS as HAZARDS,
    Bench as Bench,
    Effort as Effort,
    check_hazards as check_hazards,
)
from compactlib.testing.histories.staging_histories import check_staging_backend as check_staging_backend
from compactlib.testing.in_front import (
    FilesInFront as FilesInFront,
    ObjectsInFront as ObjectsInFront,
    Request as Request,
    StoreInFront as StoreInFront,
    at as at,
)
from compactlib.testing.interleave.pauses import explore_pauses as explore_pauses
from compactlib.testing.kit.conformance import PromiseBroken as PromiseBroken
from compactlib.testing.policies.assignment_views import check_assignment_policy as check_assignment_policy
from compactlib.testing.policies.blob_strategies import check_blob_policy as check_blob_policy
from compactlib.testing.policies.fence_conformance import (
    FenceConformance as FenceConformance,
    LockingFenceConformance as LockingFenceConformance,
    check_fence as check_fence,
)
from compactlib.testing.policies.need_checks import check_need_source as check_need_source
from compactlib.testing.policies.policy_checks import (
    check_raftlog_policy as check_raftlog_policy,
    check_scheduler_config as check_scheduler_config,
)
from compactlib.testing.policies.policy_conformance import check_policy as check_policy
from compactlib.testing.policies.sense_checks import check_sense_policy as check_sense_policy
from compactlib.testing.services.async_conformance import (
    AsyncServiceConformance as AsyncServiceConformance,
    check_async_service as check_async_service,
)
from compactlib.testing.services.conformance import (
    ServiceConformance as ServiceConformance,
    check_service as check_service,
)
from compactlib.testing.services.factory import (
    AsyncServiceFactory as AsyncServiceFactory,
    ServiceFactory as ServiceFactory,
    ServiceHooks as ServiceHooks,
)
from compactlib.testing.settings import check_settings as check_settings
from compactlib.testing.stores.kv_conformance import (
    KVStoreConformance as KVStoreConformance,
    check_kv_store as check_kv_store,
)
from compactlib.testing.stores.kv_machine import kv_machine as kv_machine
from compactlib.testing.stores.objects_conformance import (
    ObjectStoreConformance as ObjectStoreConformance,
    check_object_store as check_object_store,
)
from compactlib.testing.stores.range_format_conformance import (
    RangeFormatConformance as RangeFormatConformance,
    check_range_format as check_range_format,
)
