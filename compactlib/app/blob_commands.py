# SPDX-License-Identifier: Apache-2.0
"""Blob stores for the commands. Only `compact` takes the store's lock or changes anything, and it needs the retention
that the store's owner uses. A store that another process has open is compacted by that process alone."""

from __future__ import annotations

from typing import Any

from compactlib.app.executors import started_executor
from compactlib.app.stores import StoreAt
from compactlib.app.terminal import Answer, progress_bar
from compactlib.blobstore import (
    BlobPlan,
    BlobPolicy,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    CostBenefit,
    Greedy,
    StatsBased,
)
from compactlib.errors import BudgetSpent, Busy, InvalidInput
from compactlib.outcome import raised
from compactlib.report import VerifyReport
from compactlib.runtime import Budget

_POLICIES: tuple[BlobPolicy, ...] = (StatsBased(), Greedy(), CostBenefit(), CompactAll())


class BlobStoreAt(StoreAt):
    """A blob store's folder."""

    kind = "blob store"

    def inspect(self) -> Answer:
        """The store in numbers, its segments, and what is damaged."""
        with BlobReader(self.path) as reader:
            status, view, damage = reader.status(), reader.view(), [str(each) for each in reader.damage]
        data = {"folder": self.path, "store": status.to_dicts()[0], "segments": view.to_dicts(), "damage": damage}
        return Answer(data, (status.table().title, view.table(), *(f"damaged: {each}" for each in damage)))

    def planned(self) -> BlobPlan:
        """With the retention that was given, else the default one."""
        with self._reader() as reader:
            return reader.plan()

    def _reader(self) -> BlobReader:
        given = self.asked.retention
        config = BlobStoreConfig() if given is None else BlobStoreConfig(deleted_retention_seconds=given)
        return BlobReader(self.path, config, policy=self.policy_of(_POLICIES))

    def chosen(self, plan: BlobPlan) -> tuple[list[Any], dict[str, list[str]]]:
        """Names of segments."""
        left: dict[str, list[str]] = {}
        for each in plan.left:
            left.setdefault(each.why, []).append(str(each.name))
        return [str(name) for name in plan.names], left

    def compact(self) -> Answer:
        """Compact the store, unless another process has it open."""
        try:
            return super().compact()
        except BudgetSpent:
            raise
        except Busy as busy:
            raise Busy(f"{busy}; have that process compact it: a CompactionManager in it does, by itself or by "
                       f"request(name)") from busy

    def compacted(self) -> Any:
        """By this process, which locks the store."""
        asked = self.asked
        if asked.retention is None:
            raise InvalidInput(f"{self.path} does not say how long its owner keeps deletes; give --retention SECONDS, "
                               f"as in its BlobStoreConfig(deleted_retention_seconds=...)")
        config = BlobStoreConfig(deleted_retention_seconds=asked.retention)
        budget = Budget(bytes_per_second=asked.rate, total_bytes=asked.max_bytes)
        with progress_bar("compact") as observer, \
                BlobStore(self.path, config, policy=self.policy_of(_POLICIES), observer=observer) as store, \
                started_executor(asked) as executor:
            return raised(store.compact(executor=executor, budget=budget))

    def verified(self) -> VerifyReport:
        """Every record of every segment."""
        with BlobReader(self.path) as reader:
            return reader.verify()
