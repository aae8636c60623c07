# SPDX-License-Identifier: Apache-2.0
"""Blob stores for the commands. What looks takes no lock and changes nothing.

A store is compacted by its owner, who alone knows how long deletes are kept: that is not written in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactlib.app.stores import StoreAt
from compactlib.app.terminal import Answer
from compactlib.blobstore import (
    BlobPlan,
    BlobPolicy,
    BlobReader,
    BlobStoreConfig,
    CompactAll,
    CostBenefit,
    Greedy,
    StatsBased,
)
from compactlib.errors import InvalidInput
from compactlib.outcome import Outcome
from compactlib.report import VerifyReport

_POLICIES: tuple[BlobPolicy, ...] = (StatsBased(), Greedy(), CostBenefit(), CompactAll())


class BlobStoreAt(StoreAt):
    """A blob store's folder."""

    kind = "blob store"
    policies = tuple(policy.name for policy in _POLICIES)
    options = frozenset({"retention"})

    def inspect(self) -> Answer:
        """The store in numbers, its segments, and what is damaged."""
        with BlobReader(self.path) as reader:
            status, view, damage = reader.status(), reader.view(), [str(each) for each in reader.damage]
        data = {"folder": self.path, "store": status.to_dicts()[0], "segments": view.to_dicts(), "damage": damage}
        return Answer(data, (status.table().title, view.table(), *(f"damaged: {each}" for each in damage)))

    def levels(self) -> Mapping[str, Any]:
        """The store's, and how far a compaction has come."""
        with BlobReader(self.path) as reader:
            status, view, log = reader.status(), reader.view(), reader.look.compaction
            valid = sum(each.valid_bytes for each in view.segments)
            return {"segments": status.segments, "records": status.records, "live_bytes": valid,
                    "dead_bytes": sum(each.used_bytes for each in view.segments) - valid,
                    "free_bytes": status.capacity_bytes - status.used_bytes, "compaction": status.compaction,
                    "done": "" if log is None else
                    f"{sum(len(cycle.sources) for cycle in log.committed)}/{len(log.victims)}"}

    def planned(self) -> BlobPlan:
        """With the retention that its owner keeps, as it was given."""
        kept = self.asked.retention
        config = BlobStoreConfig() if kept is None else BlobStoreConfig(deleted_retention_seconds=kept)
        with BlobReader(self.path, config, policy=self.policy_of(_POLICIES)) as reader:
            return reader.plan()

    def chosen(self, plan: BlobPlan) -> tuple[list[Any], dict[str, list[str]]]:
        """Names of segments."""
        left: dict[str, list[str]] = {}
        for each in plan.left:
            left.setdefault(each.why, []).append(str(each.name))
        return [str(name) for name in plan.names], left

    def compacted(self) -> Outcome[Any]:
        """Refused: its owner does that."""
        raise InvalidInput(f"{self.path} is a blob store, which its owner compacts, who knows how long deletes "
                           f"are kept: BlobStore(folder, config).compact(), or a CompactionManager; compactlib plan "
                           f"says what that would do")

    def verified(self) -> VerifyReport:
        """Every record of every segment."""
        with BlobReader(self.path) as reader:
            return reader.verify()
