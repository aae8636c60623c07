# SPDX-License-Identifier: Apache-2.0
"""Indexes that this node is building, each tied to the catalog version it builds from (restriction 3)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from compactlib.catalog.errors import BelowLowWatermark
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Culprit, Factor, Floor, Need
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.catalog.sense.watermark import LowWatermark
from compactlib.errors import AuditFailed, InvalidInput


class IndexBuilds:
    """The builds that go on here. Any thread may call it.

    That an index is registered or building in a catalog version already keeps history from being cut to that version,
    for every node. This source adds what only the building node knows: which version its backfill reads.

    Args:
        view: gives the node's retained history.
        watermark: the node's low watermark: what lies below it may be cut, unless the index is being built ever since.
    """

    def __init__(self, view: Callable[[], RetainedVersions], watermark: LowWatermark) -> None:
        self._view = view
        self._watermark = watermark
        self._lock = threading.Lock()
        self._builds: dict[int, tuple[Timestamp, int]] = {}

    def begin(self, index_id: int, version: int) -> None:
        """A build of this index begins and reads this catalog version until `end`.

        Raises:
            CatalogVersionNotFound: the version is not retained.
            ObjectNotFound: the version has no such index.
            BelowLowWatermark: another version is in force at the node's low watermark, and the index is not being built
                in it: the version that was asked for may be cut at any time. Read a later one.
            InvalidInput: the index is being built already.
        """
        # Under the lock that `need` takes: a report asks for the low watermark first, so that a build that it does not
        # hold is judged by a low watermark at least as high as the report's.
        with self._lock:
            view = self._view()
            catalog = view.catalog(version)
            index = catalog.index(index_id)
            if index_id in self._builds:
                raise InvalidInput(f"index {index_id} is being built already; end that build first")
            limit = self._watermark.value.time
            if limit is not None and limit >= view.activation(view.earliest):
                at_watermark = view.at(limit)
                if version < at_watermark.version and index_id not in at_watermark.building:
                    raise BelowLowWatermark(time=catalog.activation, low_watermark=limit)
            self._builds[index_id] = catalog.activation, index.table_id

    def end(self, index_id: int) -> None:
        """The build is over, finished or given up; one that never began is no error."""
        with self._lock:
            self._builds.pop(index_id, None)

    def need(self, view: RetainedVersions) -> Need | None:
        """See `NeedSource.need`. O(builds)."""
        with self._lock:
            if not self._builds:
                return None
            index_id, (time, table) = min(self._builds.items(), key=lambda build: build[1])
        return Floor(Factor.INDEX_BUILD, time, Culprit(index=index_id, table=table))

    def __len__(self) -> int:
        return len(self._builds)

    def audit(self) -> None:
        """Check that every build reads from a time that exists.

        Raises:
            AuditFailed: one does not.
        """
        with self._lock:
            if any(time <= 0 for time, _ in self._builds.values()):
                raise AuditFailed(f"{self!r} holds a build that never began")
