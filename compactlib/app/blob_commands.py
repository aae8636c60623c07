# SPDX-License-Identifier: Apache-2.0
"""Blob stores for the commands. What looks takes no lock and changes nothing. A store that another process has open is
compacted by that process, which is asked to; else by this one, with the retention that its owner has left there."""

from __future__ import annotations

from typing import Any

from compactlib.app.executors import started_executor
from compactlib.app.stores import StoreAt
from compactlib.app.terminal import Answer, progress_bar, waiting
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
from compactlib.blobstore.log.kept_settings import kept_retention
from compactlib.blobstore.store.hard_delete import with_reclaim
from compactlib.blobstore.store.requests import ask_owner
from compactlib.errors import BudgetSpent, Busy, InvalidInput
from compactlib.outcome import Outcome
from compactlib.report import Table, VerifyReport
from compactlib.runtime.budget import Budget

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
        """With the retention that was given, or that its owner has left there."""
        with self._reader() as reader:
            return reader.plan()

    def _reader(self) -> BlobReader:
        kept = kept_retention(self.path) if self.asked.retention is None else self.asked.retention
        config = BlobStoreConfig() if kept is None else BlobStoreConfig(deleted_retention_seconds=kept)
        return BlobReader(self.path, config, policy=self.policy_of(_POLICIES))

    def chosen(self, plan: BlobPlan) -> tuple[list[Any], dict[str, list[str]]]:
        """Names of segments."""
        left: dict[str, list[str]] = {}
        for each in plan.left:
            left.setdefault(each.why, []).append(str(each.name))
        return [str(name) for name in plan.names], left

    def compact(self) -> Answer:
        """By the process that has it open, else by this one."""
        try:
            return super().compact()
        except BudgetSpent:
            raise
        except Busy as busy:
            given = self.asked.given
            if given:
                raise InvalidInput(f"{busy}; that process can be asked to compact it, by its own policy and at its own "
                                   f"rate: leave out {', '.join(sorted(given))}") from busy
            with waiting("asking its owner"):
                answer = ask_owner(self.path)
            if answer is None:
                raise
            who = f"process {answer.process} has {answer.store} open: {answer.outcome}: {answer.told}"
            rows = (Table.from_dicts(answer.rows),) if answer.outcome == "done" and answer.rows else ()
            return Answer([{"process": answer.process, **row} for row in answer.rows], (who, *rows),
                          int(answer.outcome == "failed"))

    def compacted(self) -> Outcome[Any]:
        """By this process, which locks the store."""
        asked = self.asked
        retention, kept = asked.retention, kept_retention(self.path)
        if retention is None:
            retention = kept
        if retention is None:
            raise InvalidInput(f"{self.path} does not say how long its owner keeps deletes; give --retention SECONDS")
        if kept is not None and retention != kept:
            raise InvalidInput(f"the owner of {self.path} keeps deletes for {kept:g} seconds, not {retention:g}; leave "
                               f"--retention out")
        config = BlobStoreConfig(deleted_retention_seconds=retention, triggers=())
        budget = Budget(bytes_per_second=asked.rate, total_bytes=asked.max_bytes)
        with progress_bar("compact") as observer, \
                BlobStore(self.path, config, policy=self.policy_of(_POLICIES), observer=observer) as store:
            # It will not be open for long enough to see whether the clock is right.
            store.accept_clock()
            with started_executor(asked) as executor:
                return with_reclaim(store.compact(executor=executor, budget=budget),
                                    lambda: store.reclaim(budget=budget))

    def verified(self) -> VerifyReport:
        """Every record of every segment."""
        with BlobReader(self.path) as reader:
            return reader.verify()
