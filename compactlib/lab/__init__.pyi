# SPDX-License-Identifier: Apache-2.0
from compactlib.lab.blobstore.replay import (
    BlobReplay as BlobReplay,
    BlobSettings as BlobSettings,
    replay_blobs as replay_blobs,
)
from compactlib.lab.raftlog.replay import RaftLogSettings as RaftLogSettings, replay_raftlog as replay_raftlog
from compactlib.lab.results.experiments import (
    Comparison as Comparison,
    Experiment as Experiment,
    compare as compare,
    grid as grid,
    run_experiments as run_experiments,
    sweep as sweep,
)
from compactlib.lab.scheduler.replay import SchedulerSettings as SchedulerSettings, replay_scheduler as replay_scheduler
from compactlib.lab.scheduler.world import SchedulerLoad as SchedulerLoad
from compactlib.lab.sensor.replay import SensorSettings as SensorSettings, replay_sensor as replay_sensor
from compactlib.lab.traces.log_trace import LogTrace as LogTrace
from compactlib.lab.traces.operations import Operations as Operations
from compactlib.lab.traces.traces import CsvTrace as CsvTrace
from compactlib.lab.traces.workloads import (
    Bursts as Bursts,
    Expiring as Expiring,
    HotCold as HotCold,
    TtlMix as TtlMix,
    Uniform as Uniform,
    WithReads as WithReads,
    Workload as Workload,
    Zipf as Zipf,
)
