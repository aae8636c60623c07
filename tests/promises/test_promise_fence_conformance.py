# SPDX-License-Identifier: Apache-2.0
"""Fences keep what all of them promise: in memory, in a file, in key-value stores, and in an object store."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from compactlib.fences import FileFence, KVFence, MemoryFence, ObjectFence
from compactlib.kv import MemoryStore, SqliteStore
from compactlib.objects import MemoryObjects
from compactlib.testing import FenceConformance


class TestMemoryFence(FenceConformance):
    def make_fence(self, folder: Path) -> MemoryFence:
        return MemoryFence()

    def make_impatient_fence(self, folder: Path) -> MemoryFence:
        return MemoryFence(wait_seconds=0)


class TestFileFence(FenceConformance):
    def make_fence(self, folder: Path) -> FileFence:
        return FileFence(folder / "fence")

    def make_impatient_fence(self, folder: Path) -> FileFence:
        return FileFence(folder / "fence", wait_seconds=0)


class TestKVFence(FenceConformance):
    def make_fence(self, folder: Path) -> KVFence:
        return KVFence(MemoryStore())


class TestKVFenceInSqlite(FenceConformance):
    stores: ClassVar[list[SqliteStore]] = []

    def make_fence(self, folder: Path) -> KVFence:
        self.stores.append(SqliteStore(folder / "fences.db", synchronous="normal"))
        return KVFence(self.stores[-1])

    def teardown_method(self) -> None:
        while self.stores:
            self.stores.pop().close()


class TestObjectFence(FenceConformance):
    def make_fence(self, folder: Path) -> ObjectFence:
        return ObjectFence(MemoryObjects())


def test_the_file_of_a_resource_matches_the_page(tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    fence.admit("log", 40)
    fence.commit("log", 40, b"files")
    fence.admit("log", 41)
    [file] = tmp_path.glob("*.fence")
    assert file.read_bytes()[:-4] == (
        b'CLFENCE\0\2\0{"resource":"log","token":41,"committed":{"token":40,"value":"ZmlsZXM="}}')
