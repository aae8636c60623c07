# SPDX-License-Identifier: Apache-2.0
"""Stores that a rewrite in another process opens for itself."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager

import attrs

from compactlib.clock import SystemClock
from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects
from compactlib.staging import CommittedRanges
from compactlib.staging.names import repository_partition
from compactlib.staging.tokens import StagingTokens


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

    @contextmanager
    def open(self) -> Iterator[tuple[StagingTokens, CommittedRanges]]:
        with closing(SqliteStore(self.sqlite_path)) as store, LocalObjects(self.objects_path) as objects:
            tokens = StagingTokens(store, repository_partition(self.repository), random.SystemRandom(), SystemClock())
            yield tokens, CommittedRanges(objects)
