"""Stores that a rewrite in another process opens for itself."""

from __future__ import annotations

import os
import random

import attrs

from compactlib.clock import SystemClock
from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects
from compactlib.staging import CommittedRanges
from compactlib.staging.committed.interface import Committed
from compactlib.staging.model.names import repository_partition
from compactlib.staging.records.tokens import StagingTokens


@attrs.frozen
class FileStores:
    """A repository in a folder: see `RewriteStores`."""

    folder: str
    repository: str = "main"

    @property
    def sqlite_path(self) -> str:
        return os.path.join(self.folder, "state.sqlite")

    @property
    def objects_path(self) -> str:
        return os.path.join(self.folder, "objects")

    def open(self) -> tuple[StagingTokens, Committed]:
        store = SqliteStore(self.sqlite_path)
        tokens = StagingTokens(store, repository_partition(self.repository), random.SystemRandom(), SystemClock())
        return tokens, CommittedRanges(LocalObjects(self.objects_path))
