# SPDX-License-Identifier: Apache-2.0
"""Policy experiments: replay a workload against a policy on metadata alone, and see what that costs.

>>> from compactlib.blobstore import Greedy
>>> from compactlib.lab import BlobSettings, Uniform, replay_blobs
>>> settings = BlobSettings.of_slots(100, 32)
>>> workload = Uniform(keys=2_000, writes=10_000)
>>> report = replay_blobs(workload, Greedy(min_used_fraction=0, min_reclaimed_segments=2), settings)
>>> report.total.operations, report.total.refused, 1.0 < report.total.write_amplification < 2.0
(12000, 0, True)
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.lab.blobs import (
        BlobReplay as BlobReplay,
        BlobSettings as BlobSettings,
        replay_blobs as replay_blobs,
    )
    from compactlib.lab.experiments import (
        Comparison as Comparison,
        Experiment as Experiment,
        compare as compare,
        grid as grid,
        run_experiments as run_experiments,
        sweep as sweep,
    )
    from compactlib.lab.log_trace import LogTrace as LogTrace
    from compactlib.lab.operations import Operations as Operations
    from compactlib.lab.raftlog import RaftLogSettings as RaftLogSettings, replay_raftlog as replay_raftlog
    from compactlib.lab.scheduler import (
        SchedulerLoad as SchedulerLoad,
        SchedulerSettings as SchedulerSettings,
        replay_scheduler as replay_scheduler,
    )
    from compactlib.lab.staging import SensorSettings as SensorSettings, replay_sensor as replay_sensor
    from compactlib.lab.trace import CsvTrace as CsvTrace
    from compactlib.lab.workloads import (
        Bursts as Bursts,
        Expiring as Expiring,
        HotCold as HotCold,
        TtlMix as TtlMix,
        Uniform as Uniform,
        WithReads as WithReads,
        Workload as Workload,
        Zipf as Zipf,
    )
else:
    offer(__name__, {
        "compactlib.lab.blobs": "BlobReplay BlobSettings replay_blobs",
        "compactlib.lab.raftlog": "RaftLogSettings replay_raftlog",
        "compactlib.lab.experiments": "Comparison Experiment compare grid run_experiments sweep",
        "compactlib.lab.scheduler": "SchedulerLoad SchedulerSettings replay_scheduler",
        "compactlib.lab.staging": "SensorSettings replay_sensor",
        "compactlib.lab.log_trace": "LogTrace",
        "compactlib.lab.operations": "Operations",
        "compactlib.lab.trace": "CsvTrace",
        "compactlib.lab.workloads": "Bursts Expiring HotCold TtlMix Uniform WithReads Workload Zipf",
    })
