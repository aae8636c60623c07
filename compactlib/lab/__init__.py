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

from compactlib._lazy import offer

offer(__name__)
