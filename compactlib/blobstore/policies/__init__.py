# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the blob store; `docs/blobstore.md` compares them.

| policy | takes | for |
|---|---|---|
| `StatsBased` | the range that copies least for each segment freed | the default |
| `CompactAll` | everything that may be taken | a full round, and small stores |
| `Hybrid` | what another policy takes, and everything on a schedule | stores whose garbage is scattered |
| `Greedy` | the emptiest, wherever they lie | least copying, and many segments freed at once |
| `CostBenefit` | empty and old ones first | some data is hot and some is cold |
| `ExpiryForecast` | the emptiest that will not be emptier soon | blobs have a time to live |
"""

from __future__ import annotations

from compactlib.blobstore.policies.compact_all import CompactAll
from compactlib.blobstore.policies.cost_benefit import CostBenefit
from compactlib.blobstore.policies.expiry_forecast import ExpiryForecast
from compactlib.blobstore.policies.greedy import Greedy
from compactlib.blobstore.policies.hybrid import Hybrid
from compactlib.blobstore.policies.stats_based import StatsBased

__all__ = ["CompactAll", "CostBenefit", "ExpiryForecast", "Greedy", "Hybrid", "StatsBased"]
