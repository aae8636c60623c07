"""What a store has one of, whichever objects compact it: who may run, and the compaction in progress."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import attrs

from compactlib.outcome import Skipped
from compactlib.runtime.ownership import Ownership

if TYPE_CHECKING:
    from compactlib.blobstore.compaction_log import CompactionLog
    from compactlib.blobstore.compaction_work import CompactionWork


@attrs.frozen
class StoreBusy(Skipped):
    """Nothing was done because another compaction or a hard delete of the store is running; ask again later."""


class StoreCompactions:
    """Belongs to a store; its compactors, hard deletes and managers share it.

    Args:
        what: the store as messages name it.
        found: the compaction that opening the store has found in progress.

    Attributes:
        ownership: every compaction, resumption, drop and batch of a hard delete is a run of it.
        work: the compaction in progress, for whoever runs; `None` if there is none, or if it was only found yet.
        side_files: held while a file beside the log is replaced that no run is needed for (the history of plans).
    """

    def __init__(self, what: str, found: CompactionLog | None = None) -> None:
        self.ownership: Ownership = Ownership(what)
        self.work: CompactionWork | None = None
        self.side_files: threading.Lock = threading.Lock()
        self._found = found

    @property
    def log(self) -> CompactionLog | None:
        """The compaction in progress, as far as it has come."""
        work = self.work
        return self._found if work is None else work.log

    def ended(self) -> None:
        """No compaction is in progress any more."""
        self._found = self.work = None
