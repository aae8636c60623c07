# SPDX-License-Identifier: Apache-2.0
"""Every store of objects keeps what all of them promise: in memory, in a folder, by obstore, in S3."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from compactlib.objects import BadKey, LocalObjects, MemoryObjects, ObjectStore, RemoteObjects
from compactlib.testing import ObjectStoreConformance
from tests.harness.kv import servers
from tests.harness.objects import s3_servers


class TestMemoryObjects(ObjectStoreConformance):
    def make_store(self, folder: Path) -> ObjectStore:
        return MemoryObjects()


class TestObstoreInMemory(ObjectStoreConformance):
    def make_store(self, folder: Path) -> ObjectStore:
        return RemoteObjects(MemoryStore())


class TestLocalObjects(ObjectStoreConformance):
    def make_store(self, folder: Path) -> ObjectStore:
        return LocalObjects(folder)


@pytest.mark.cluster
class TestS3(ObjectStoreConformance):
    large_bytes = 7_000_000

    def make_store(self, folder: Path) -> ObjectStore:
        return RemoteObjects(s3_servers.new_bucket(servers.moto()))


def test_prefix_that_no_key_has_is_refused() -> None:
    with MemoryObjects() as store:
        for prefix in ("../", "a//", ".hidden", "a b"):
            with pytest.raises(BadKey):
                store.list(prefix)
