# SPDX-License-Identifier: Apache-2.0
"""`Activity`: notifies the sensor and the observer of changes of a repository's branches.

`staging_sealed_tokens` is a level of a branch, `None` when it is deleted. `docs/metrics.md` lists all events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from compactlib.observer import Observer
from compactlib.staging.record import BranchRecord

if TYPE_CHECKING:
    from compactlib.staging.sensor import CompactionSensor


@attrs.frozen
class Activity:
    """Called after operations, outside of locks; never blocks. `sensor` is `None` without a worker."""

    repository: str
    observer: Observer
    sensor: CompactionSensor | None

    def read(self, branch: str, record: BranchRecord) -> None:
        """Note that an operation read this record of the branch."""
        if self.sensor is not None:
            self.sensor.saw(self.repository, branch, record)

    def wrote(self, branch: str, before: BranchRecord | None, record: BranchRecord) -> None:
        """Note that this process replaced the record of the branch."""
        self.read(branch, record)
        if len(record.sealed_tokens) != (0 if before is None else len(before.sealed_tokens)):
            self._sealed(branch, len(record.sealed_tokens))

    def deleted(self, branch: str) -> None:
        """Note that this process deleted the branch."""
        self.missed(branch)
        self._sealed(branch, None)

    def missed(self, branch: str) -> None:
        """Note that the branch does not exist."""
        if self.sensor is not None:
            self.sensor.forget(self.repository, branch)

    def wrote_tombstones(self, branch: str, record: BranchRecord, count: int) -> None:
        """Note acknowledged tombstones of deletes or resets in `record.staging_token`."""
        if self.sensor is not None:
            self.sensor.wrote_tombstones(self.repository, branch, record, count)

    def listed_tombstones(self, branch: str, record: BranchRecord, count: int) -> None:
        """Note that a page of a listing skipped tombstones."""
        if self.sensor is not None:
            self.sensor.listed_tombstones(self.repository, branch, record, count)

    def _sealed(self, branch: str, value: int | None) -> None:
        self.observer.event("staging_sealed_tokens", repository=self.repository, branch=branch, value=value)
