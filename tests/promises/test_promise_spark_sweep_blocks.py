# SPDX-License-Identifier: Apache-2.0
"""A sweep of a folder of blocks deletes nothing for a list without any block of the folder: the list is of an empty
scheduler, or of another folder.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from compactlib.errors import Conflict
from compactlib.objects import LocalObjects
from compactlib.scheduler import BlockMeta
from compactlib.spark import BlockFolder

FAR_FUTURE = 1e12


def filled(folder: Path) -> BlockFolder:
    """With the blocks `b0` and `b1` of a tenant."""
    blocks = BlockFolder(partial(LocalObjects, folder))
    with blocks.open_objects() as objects:
        for name in ("b0", "b1"):
            objects.create(blocks.key_of("acme", 3, name), name.encode())
    return blocks


def keys(blocks: BlockFolder) -> int:
    """How many blocks are there."""
    with blocks.open_objects() as objects:
        return len(list(objects.list("tenant-")))


def meta(name: str, tenant: str = "acme") -> BlockMeta:
    """Return a scheduler's record of a block."""
    return BlockMeta(id=name, tenant=tenant, shard=3, level=0)


@pytest.mark.parametrize("known", [(), (meta("b0", "another"), meta("b7"))], ids=["empty", "of another folder"])
def test_sweep_deletes_nothing_if_no_block_is_known(tmp_path: Path, known: tuple[BlockMeta, ...]) -> None:
    blocks = filled(tmp_path)
    with pytest.raises(Conflict, match="none of the 2 blocks"):
        blocks.sweep(known, now=FAR_FUTURE, older_than_seconds=60.0)
    assert keys(blocks) == 2


def test_sweep_deletes_unknown_blocks_and_keeps_known_ones(tmp_path: Path) -> None:
    blocks = filled(tmp_path)
    assert blocks.sweep((meta("b0"),), now=FAR_FUTURE, older_than_seconds=60.0) == 1
    assert keys(blocks) == 1


def test_sweep_of_young_or_no_blocks_is_no_conflict(tmp_path: Path) -> None:
    blocks = filled(tmp_path)
    assert blocks.sweep((), now=0.0, older_than_seconds=60.0) == 0
    empty = BlockFolder(partial(LocalObjects, tmp_path / "empty"))
    assert empty.sweep((), now=FAR_FUTURE, older_than_seconds=60.0) == 0


@pytest.mark.parametrize("name", ["block-b0 (copy).parquet", "notes.txt", "block-b0.parquet.md5"])
def test_sweep_leaves_files_that_are_no_blocks(tmp_path: Path, name: str) -> None:
    blocks = filled(tmp_path)
    (stranger := (tmp_path / blocks.key_of("acme", 3, "b0")).with_name(name)).write_text("of a user")
    assert blocks.sweep((meta("b0"),), now=FAR_FUTURE, older_than_seconds=60.0) == 1
    assert stranger.exists()
    assert keys(blocks) == 2


def test_sweep_knows_blocks_of_all_names(tmp_path: Path) -> None:
    blocks, names = filled(tmp_path), ["~a", "ü/..%", "block-.parquet", "_", "A b-1"]
    with blocks.open_objects() as objects:
        for tenant, name in [("", "b7"), *zip(names, reversed(names), strict=True)]:
            objects.create(blocks.key_of(tenant, 12, name), b"")
    assert blocks.sweep((meta("b0"),), now=FAR_FUTURE, older_than_seconds=60.0) == 2 + len(names)
    assert keys(blocks) == 1
