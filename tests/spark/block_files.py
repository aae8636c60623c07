# SPDX-License-Identifier: Apache-2.0
"""Parquet blocks in a folder of this machine, which tests write and read as files."""

from __future__ import annotations

import functools
import os

import attrs

from compactlib.objects import LocalObjects
from compactlib.spark import BlockFolder


@attrs.frozen(init=False)
class LocalBlocks(BlockFolder):
    """Blocks as objects of a folder.

    Attributes:
        folder: where they lie.
    """

    folder: str = ""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = os.path.abspath(folder)
        self.__attrs_init__(functools.partial(LocalObjects, path), path)

    def path_of(self, tenant: str, shard: int, block_id: str) -> str:
        """The file of a block, in a folder that is there."""
        path = os.path.join(self.folder, self.key_of(tenant, shard, block_id))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path
