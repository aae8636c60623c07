# SPDX-License-Identifier: Apache-2.0
"""Events of a compaction, as the store's observer is notified of them.

Each event is a name and picklable numbers, given to `Observer.event`. A host that keeps anything by log position, or
that caches answers, listens to them; the store's own replication tokens are sequences, which compactions keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from compactlib.blobstore.compaction.progress.compaction_log import Cycle
from compactlib.blobstore.validity.verdicts import Verdict
from compactlib.runtime.observe import Observer

POSITIONS_MOVED = "blobstore_positions_moved"
"""Records have other places now: whatever was kept by place begins anew."""
EXPIRED_GONE = "blobstore_expired_gone"
"""So many expired blobs are now missing: a get that answered `Expired` answers `Missing`."""
DELETED_GONE = "blobstore_deleted_gone"
"""The content of so many deleted blobs is gone: `include_deleted` answers `Deleted` where it answered the blob."""
TOMBSTONES_GONE = "blobstore_tombstones_gone"
"""So many deletes were removed: a get that answered `Deleted` answers `Missing`."""
HARD_DELETE_RESET = "blobstore_hard_delete_reset"
"""The file that says how far the hard delete has come is damaged: it begins anew."""
CONTENTS_ERASED = "blobstore_contents_erased"
"""A hard delete has overwritten the content of so many deleted blobs."""
DAMAGE_FOUND = "blobstore_damage_found"
"""A record could not be copied because it is damaged; its segment was left alone."""
COMPACTION_FAILED = "blobstore_compaction_failed"
"""A compaction stopped with an error; the next one goes on with it, or it is dropped."""
COMPACTION_DONE = "blobstore_compaction_done"
"""A compaction has come to its end."""
PLAN_HISTORY_NOT_KEPT = "blobstore_plan_history_not_kept"
"""A compaction is done, but the disk refused to note when: a scheduled round may come due again too early."""


@attrs.frozen
class StoreEvents:
    """Notifies an observer of one store's events.

    Attributes:
        store: the store's name; part of every event.
        observer: is notified.
    """

    store: str
    observer: Observer

    def cycle_ended(self, number: int, cycle: Cycle, verdicts: Mapping[Verdict, int]) -> None:
        """The effects of one committed cycle, each only if there were any."""
        if cycle.sources:
            self.tell(POSITIONS_MOVED, number=number, removed=[str(name) for name in cycle.sources],
                      added=[str(target.name) for target in cycle.targets])
        for verdict, name in ((Verdict.EXPIRED, EXPIRED_GONE), (Verdict.DELETED, DELETED_GONE),
                              (Verdict.PURGED, TOMBSTONES_GONE)):
            if verdicts.get(verdict):
                self.tell(name, number=number, records=verdicts[verdict])

    def tell(self, event: str, **fields: Any) -> None:
        """One of the events above, with what it is about."""
        self.observer.event(event, {"store": self.store, **fields})
