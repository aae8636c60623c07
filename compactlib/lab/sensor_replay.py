"""Replays a workload against the policy that says when a branch is compacted: the real `CompactionSensor`, no data.

A put stages a value, a delete stages a tombstone over a key of the base, a read lists a page from its key on and passes
over the tombstones on its way. A trigger compacts at once: what is staged becomes the base.
"""

from __future__ import annotations

from typing import Any

import attrs
from sortedcontainers import SortedSet

from compactlib.errors import InvalidInput
from compactlib.lab.operations import DELETE, PUT
from compactlib.lab.workloads import Workload
from compactlib.report import Printed
from compactlib.staging.names import StagingToken
from compactlib.staging.policy import SensePolicy
from compactlib.staging.record import BranchRecord
from compactlib.staging.sensor import CompactionSensor

_REPOSITORY, _BRANCH = "lab", "main"


@attrs.frozen(kw_only=True, repr=False)
class SensorReport(Printed):
    """What a policy made of a workload.

    Attributes:
        operations: how many operations were made.
        deletes: tombstones that were written.
        listings: pages that were listed.
        listed_keys: keys that they gave.
        passed_tombstones: tombstones that they passed over.
        compactions: how often the branch was compacted.
        moved_entries: staged entries, tombstones included, that compactions took into the base.
        peak_tombstones: the most tombstones that were staged at once.
        reasons: why each compaction came, in order.
    """

    operations: int
    deletes: int
    listings: int
    listed_keys: int
    passed_tombstones: int
    compactions: int
    moved_entries: int
    peak_tombstones: int
    reasons: tuple[str, ...]

    @property
    def read_amplification(self) -> float:
        """Entries that listings looked at for each key that they gave."""
        return (self.listed_keys + self.passed_tombstones) / max(self.listed_keys, 1)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        row = {field.name: getattr(self, field.name) for field in attrs.fields(type(self)) if field.name != "reasons"}
        return [{**row, "read_amplification": self.read_amplification}]

    def _summary(self) -> str:
        return (f"{self.operations:,} operations, {self.compactions:,} compactions, listings looked at "
                f"{self.read_amplification:.3f} entries for each key")


def replay_sensor(workload: Workload, policy: SensePolicy, *, page_keys: int = 100, base_keys: int = 0,
                  seed: int = 0) -> SensorReport:
    """What `policy` makes of `workload` on one branch. Equal arguments give equal reports.

    Args:
        workload: puts, deletes and, as reads, listings.
        policy: says when the branch is compacted.
        page_keys: keys that a listing gives at most, at least 1.
        base_keys: the keys below this were committed before; only over those a delete is a tombstone.
        seed: of the workload.

    Raises:
        InvalidInput: `page_keys` is less than 1.
    """
    if page_keys < 1:
        raise InvalidInput(f"page_keys is {page_keys}; a page has at least 1 key")
    branch = _Branch(policy, page_keys, base_keys)
    for piece in workload.pieces(seed):
        for kind, key, *_ in piece.rows():
            branch.make(kind, key)
    return branch.report()


class _Branch:
    def __init__(self, policy: SensePolicy, page_keys: int, base_keys: int) -> None:
        self.sensor = CompactionSensor(policy)
        self.events = self.sensor.events(_REPOSITORY)
        self.page_keys = page_keys
        self.record = BranchRecord(staging_token=StagingToken("token-0"))
        self.base: set[int] = set(range(base_keys))
        self.live: SortedSet[int] = SortedSet(self.base)
        self.tombstones: SortedSet[int] = SortedSet()
        self.staged: set[int] = set()
        self.reasons: list[str] = []
        self.operations = self.deletes = self.listings = self.listed = self.passed = self.moved = self.peak = 0

    def make(self, kind: int, key: int) -> None:
        self.operations += 1
        if kind == PUT:
            self.staged.add(key)
            self.live.add(key)
            self.tombstones.discard(key)
        elif kind == DELETE:
            self.delete(key)
        else:
            self.list_from(key)
        trigger = self.sensor.take()
        if trigger is not None:
            self.reasons.append(trigger.why)
            self.compact()

    def delete(self, key: int) -> None:
        self.live.discard(key)
        if key not in self.base or key in self.tombstones:
            self.staged.discard(key)
            return
        self.staged.add(key)
        self.tombstones.add(key)
        self.deletes += 1
        self.peak = max(self.peak, len(self.tombstones))
        self.events.tombstones_written(_BRANCH, self.record, 1)

    def list_from(self, key: int) -> None:
        first = self.live.bisect_left(key)
        page = self.live[first:first + self.page_keys]
        # A listing that comes to the end has passed over everything up to there.
        end = self.tombstones.bisect_left(page[-1]) if len(page) == self.page_keys else len(self.tombstones)
        passed = end - self.tombstones.bisect_left(key)
        self.listings += 1
        self.listed += len(page)
        self.passed += passed
        if passed:
            self.events.tombstones_listed(_BRANCH, self.record, passed)

    def compact(self) -> None:
        self.moved += len(self.staged)
        self.base |= self.staged
        self.base -= set(self.tombstones)
        self.staged.clear()
        self.tombstones.clear()
        token = StagingToken(f"token-{len(self.reasons)}")
        self.record = attrs.evolve(self.record, version=self.record.version + 1, staging_token=token)
        self.sensor.compacted(_REPOSITORY, _BRANCH, self.record)

    def report(self) -> SensorReport:
        self.sensor.audit()
        return SensorReport(operations=self.operations, deletes=self.deletes, listings=self.listings,
                            listed_keys=self.listed, passed_tombstones=self.passed, compactions=len(self.reasons),
                            moved_entries=self.moved, peak_tombstones=self.peak, reasons=tuple(self.reasons))
