# SPDX-License-Identifier: Apache-2.0
"""Policy experiments: replay a workload against a policy on metadata alone, and report the policy's costs.

>>> from compactlib.blobstore import Greedy
>>> from compactlib.lab import BlobLogModel, Uniform, replay
>>> workload = Uniform(keys=2_000, writes=10_000)
>>> report = replay(workload, Greedy(min_used_fraction=0, min_reclaimed_segments=2), BlobLogModel.of_slots(100, 32))
>>> report.total.operations, report.total.refused, 1.0 < report.total.write_amplification < 2.0
(12000, 0, True)
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.lab.blobs import BlobLogModel as BlobLogModel
    from compactlib.lab.comparison import Comparison as Comparison, compare as compare
    from compactlib.lab.raftlog import RaftLogModel as RaftLogModel
    from compactlib.lab.report import Report as Report
    from compactlib.lab.scheduler import SchedulerModel as SchedulerModel
    from compactlib.lab.simulation import replay as replay
    from compactlib.lab.staging import BranchModel as BranchModel
    from compactlib.lab.trace import CsvTrace as CsvTrace, LogTrace as LogTrace
    from compactlib.lab.workloads import (
        Arrivals as Arrivals,
        Bursts as Bursts,
        Expiring as Expiring,
        HotCold as HotCold,
        Row as Row,
        Uniform as Uniform,
        WithReads as WithReads,
        Workload as Workload,
        Zipf as Zipf,
    )
else:
    offer(__name__, {
        "compactlib.lab.blobs": "BlobLogModel",
        "compactlib.lab.comparison": "Comparison compare",
        "compactlib.lab.raftlog": "RaftLogModel",
        "compactlib.lab.simulation": "replay",
        "compactlib.lab.report": "Report",
        "compactlib.lab.scheduler": "SchedulerModel",
        "compactlib.lab.staging": "BranchModel",
        "compactlib.lab.trace": "CsvTrace LogTrace",
        "compactlib.lab.workloads":
            "Arrivals Bursts Expiring HotCold Row Uniform WithReads Workload Zipf",
    })
