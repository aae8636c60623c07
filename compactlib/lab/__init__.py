"""Policy experiments: replay a workload against a policy on metadata alone, and see what that costs.

>>> from compactlib.blobstore import Greedy
>>> settings = BlobSettings.of_slots(100, 32)
>>> workload = Uniform(keys=2_000, writes=10_000)
>>> report = replay_blobs(workload, Greedy(min_used_fraction=0, min_reclaimed_segments=2), settings)
>>> report.total.operations, report.total.refused, 1.0 < report.total.write_amplification < 2.0
(12000, 0, True)
"""

from compactlib.lab.blobstore.closed_forms import (
    fifo_write_amplification,
    greedy_write_amplification,
    random_write_amplification,
)
from compactlib.lab.blobstore.fifo import OldestFirst
from compactlib.lab.blobstore.log import BlobLog, Compacted
from compactlib.lab.blobstore.replay import BlobReplay, BlobSettings, replay_blobs
from compactlib.lab.raftlog.replay import RaftLogReplay, RaftLogSettings, replay_raftlog
from compactlib.lab.results.experiments import (
    Comparison,
    Experiment,
    ReplayTask,
    Setup,
    compare,
    grid,
    run_experiments,
    sweep,
)
from compactlib.lab.results.measures import AMPLIFICATIONS, Measures, together
from compactlib.lab.results.reports import MeasuredReport, ReplayReport, Report
from compactlib.lab.scheduler.replay import SchedulerSettings, replay_scheduler
from compactlib.lab.scheduler.report import SchedulerMeasures, SchedulerReport
from compactlib.lab.scheduler.world import SchedulerLoad
from compactlib.lab.sensor.replay import SensorReplay, SensorSettings, replay_sensor
from compactlib.lab.sensor.report import SensorMeasures, SensorReport
from compactlib.lab.traces.operations import DELETE, FOREVER, PUT, READ, Operations, OperationsBuilder
from compactlib.lab.traces.traces import CloudPhysicsTrace, CsvTrace
from compactlib.lab.traces.workloads import (
    AppendMostly,
    Bursts,
    HotCold,
    Synthetic,
    TtlMix,
    Uniform,
    WithReads,
    Workload,
    Zipf,
)

__all__ = [
    "AMPLIFICATIONS",
    "DELETE",
    "FOREVER",
    "PUT",
    "READ",
    "AppendMostly",
    "BlobLog",
    "BlobReplay",
    "BlobSettings",
    "Bursts",
    "CloudPhysicsTrace",
    "Compacted",
    "Comparison",
    "CsvTrace",
    "Experiment",
    "HotCold",
    "MeasuredReport",
    "Measures",
    "OldestFirst",
    "Operations",
    "OperationsBuilder",
    "RaftLogReplay",
    "RaftLogSettings",
    "ReplayReport",
    "ReplayTask",
    "Report",
    "SchedulerLoad",
    "SchedulerMeasures",
    "SchedulerReport",
    "SchedulerSettings",
    "SensorMeasures",
    "SensorReplay",
    "SensorReport",
    "SensorSettings",
    "Setup",
    "Synthetic",
    "TtlMix",
    "Uniform",
    "WithReads",
    "Workload",
    "Zipf",
    "compare",
    "fifo_write_amplification",
    "greedy_write_amplification",
    "grid",
    "random_write_amplification",
    "replay_blobs",
    "replay_raftlog",
    "replay_scheduler",
    "replay_sensor",
    "run_experiments",
    "sweep",
    "together",
]
