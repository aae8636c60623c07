# SPDX-License-Identifier: Apache-2.0
"""Indexes that this node is building, each tied to the catalog version it builds from (restriction 3)."""

from __future__ import annotations

import threading

from compactlib._arguments import refuses_misfits
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Culprit, Factor, Floor, Need
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.errors import AuditFailed, InvalidInput


class IndexBuilds:
    """The builds that go on here. Any thread may call it.

    That an index is registered or building in a catalog version already keeps history from being cut to that version,
    for every node. This source adds what only the building node knows: which version its backfill reads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._builds: dict[int, tuple[Timestamp, int]] = {}

    @refuses_misfits
    def begin(self, index_id: int, version: int, view: RetainedVersions) -> None:
        """A build of this index begins and reads this catalog version until `end`.

        Raises:
            CatalogVersionNotFound: the version is not retained.
            ObjectNotFound: the version has no such index.
            InvalidInput: the index is being built already.
        """
        catalog = view.catalog(version)
        index = catalog.index(index_id)
        with self._lock:
            if index_id in self._builds:
                raise InvalidInput(f"index {index_id} is being built already; end that build first")
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
