"""Objects in S3, on real servers: one that honours conditional writes, and one that has to be found out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from compactlib.errors import InvalidInput
from compactlib.objects import (
    ConditionsIgnored,
    ObjectExists,
    ObjectNotFound,
    ObjectStore,
    RemoteObjects,
    StoreFailed,
)
from compactlib.testing.objects_conformance import ObjectStoreConformance
from tests.objects import s3_servers

_numbers = itertools.count()


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with s3_servers.moto() as address:
        yield address


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_servers.rclone(tmp_path_factory.mktemp("rclone")) as address:
        yield address


def new_bucket(address: str) -> Any:
    name = f"bucket-{next(_numbers)}"
    s3_servers.make_bucket(address, name)
    return s3_servers.bucket(address, name)


class TestS3(ObjectStoreConformance):
    large_bytes = 7_000_000

    @pytest.fixture(autouse=True)
    def _server(self, moto: str) -> None:
        self.address = moto

    def make_store(self, folder: Path) -> ObjectStore:
        return RemoteObjects(new_bucket(self.address))


class TestUnchecked(ObjectStoreConformance):
    """For a single writer, a store that ignores conditions will do, if that is said."""

    creators = 1

    def make_store(self, folder: Path) -> ObjectStore:
        return RemoteObjects(MemoryStore(), conditions="unchecked")


def test_a_server_that_overwrites_is_found_out_on_opening(rclone: str) -> None:
    bucket = new_bucket(rclone)
    with pytest.raises(ConditionsIgnored, match="ignores conditional writes"):
        RemoteObjects(bucket)
    with RemoteObjects(bucket, conditions="unchecked") as store:
        assert list(store.list()) == []
        store.create("a", b"1")
        with pytest.raises(ObjectExists):
            store.create("a", b"2")


def test_the_probe_leaves_nothing_and_is_not_listed(moto: str) -> None:
    bucket = new_bucket(moto)
    with RemoteObjects(bucket):
        assert [found for page in bucket.list() for found in page] == []
    # What a crash leaves of a probe is nobody's object.
    bucket.put("compactlib-probe/left", b"first")
    with RemoteObjects(bucket, conditions="trusted") as store:
        assert list(store.list()) == []


def test_listings_of_more_than_a_page_ascend() -> None:
    bucket = MemoryStore()
    keys = [f"a/{number:04}" for number in range(2500)]
    for key in keys:
        bucket.put(key, b"")
    with RemoteObjects(bucket, conditions="trusted") as store:
        assert [info.key for info in store.list("a/")] == keys
        assert [info.key for info in store.list(after="a/1998")] == keys[1999:]


def test_a_server_that_is_away_is_named() -> None:
    away = s3_servers.bucket("http://127.0.0.1:1", "bucket")
    with pytest.raises(StoreFailed, match=r"create 'compactlib-probe/.*' failed"):
        RemoteObjects(away)
    with RemoteObjects(away, conditions="trusted") as store, pytest.raises(StoreFailed) as raised:
        store.get("a")
    assert (raised.value.operation, raised.value.key) == ("get", "a")


def test_a_bucket_that_does_not_exist_is_told(moto: str) -> None:
    missing = s3_servers.bucket(moto, "no-such-bucket")
    with pytest.raises((StoreFailed, ObjectNotFound)):
        RemoteObjects(missing)


def test_only_known_conditions_are_taken() -> None:
    with pytest.raises(InvalidInput, match="'probe', 'trusted' or 'unchecked'"):
        RemoteObjects(MemoryStore(), conditions="maybe")  # type: ignore[arg-type]
