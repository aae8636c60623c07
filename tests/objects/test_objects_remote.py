# SPDX-License-Identifier: Apache-2.0
"""Objects in S3, on real servers: one that honours conditional writes, and others that have to be found out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from compactlib.errors import Closed
from compactlib.objects import (
    BadDigest,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreFailed,
    RemoteObjects,
)
from compactlib.objects.errors import AccessDenied, ConditionsIgnored
from compactlib.objects.store import read_checked
from tests.harness.forks import in_a_fork
from tests.harness.kv import servers
from tests.harness.objects import s3_servers
from tests.harness.objects.hostile_s3 import Manner, hostile

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_servers.rclone(tmp_path_factory.mktemp("rclone")) as address:
        yield address


@pytest.fixture(scope="module")
def s3rver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not (s3_servers.S3RVER / "node_modules").exists():
        pytest.skip("s3rver is not installed: python -m tests.harness.objects.s3_servers")
    with s3_servers.s3rver(tmp_path_factory.mktemp("s3rver")) as address:
        yield address


@pytest.fixture(scope="module")
def stands_for_s3rver() -> Iterator[str]:
    with hostile(Manner.OVERWRITES) as address:
        yield address


@pytest.mark.parametrize("server", ["rclone", "s3rver", "stands_for_s3rver"])
def test_a_server_that_overwrites_is_found_out_on_opening(server: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue(server)
    bucket = s3_servers.bucket(address, "hostile")
    if server != "stands_for_s3rver":
        s3_servers.make_bucket(address, "hostile")
    with pytest.raises(ConditionsIgnored, match="ignores conditional writes"):
        RemoteObjects(bucket)
    # Nothing of the probe is left.
    assert [found for page in bucket.list() for found in page] == []


def test_a_server_that_refuses_conditions_is_named() -> None:
    with hostile(Manner.REFUSES_CONDITIONS) as address, pytest.raises(ObjectStoreFailed, match=r"501|NotImplemented"):
        RemoteObjects(s3_servers.bucket(address, "hostile"))


def test_a_retrying_client_opens_a_store_and_leaves_no_object() -> None:
    """It finds its own probe there, of which only the answer was lost."""
    with hostile(Manner.LOSES_THE_FIRST_ANSWER) as address:
        bucket = s3_servers.bucket(address, "hostile", retries=2)
        with RemoteObjects(bucket):
            assert [found for page in bucket.list() for found in page] == []


def test_a_probe_whose_answer_is_lost_is_removed() -> None:
    with hostile(Manner.LOSES_THE_FIRST_ANSWER) as address:
        bucket = s3_servers.bucket(address, "hostile")
        with pytest.raises(ObjectStoreFailed, match=r"500|InternalError"):
            RemoteObjects(bucket)
        assert [found for page in bucket.list() for found in page] == []


def test_a_store_that_denies_deletes_is_opened_and_keeps_all() -> None:
    with hostile(Manner.DENIES_DELETES) as address, RemoteObjects(s3_servers.bucket(address, "hostile")) as store:
        store.create("a", b"1")
        for keys in (["a"], ["a", "b"]):
            with pytest.raises(AccessDenied):
                store.delete(keys)
        assert [info.key for info in store.list()] == ["a"]


def test_a_store_that_denies_creates_is_opened_for_reads() -> None:
    with hostile(Manner.DENIES_CREATES) as address:
        bucket = s3_servers.bucket(address, "hostile")
        bucket.put("a", b"1")
        with RemoteObjects(bucket) as store:
            assert store.get("a") == b"1"
            with pytest.raises(AccessDenied):
                store.create("b", b"2")


def test_object_exists_is_raised_only_for_an_existing_object() -> None:
    """S3 answers 409 while another create or delete of the key is under way, which may leave nothing there."""
    with hostile(Manner.CONFLICTS) as address:
        bucket = s3_servers.bucket(address, "hostile")
        with RemoteObjects(bucket) as store:
            with pytest.raises(ObjectStoreFailed, match="another request"):
                store.create("a", b"1")
            bucket.put("a", b"2")
            with pytest.raises(ObjectExists):
                store.create("a", b"1")


def test_bytes_that_changed_on_the_server_are_found_by_their_digest() -> None:
    with hostile(Manner.DAMAGES) as address, RemoteObjects(s3_servers.bucket(address, "hostile")) as store:
        ref = store.create("a", b"data")
        with pytest.raises(BadDigest, match="4 bytes of"):
            read_checked(store, ref)


def test_a_listing_in_disorder_or_with_an_error_is_no_short_listing() -> None:
    for manner, told in ((Manner.LISTS_IN_DISORDER, "out of order"), (Manner.FAILS_TO_LIST, "500|InternalError")):
        with hostile(manner) as address, RemoteObjects(s3_servers.bucket(address, "hostile")) as store:
            for key in ("a", "b", "c"):
                store.create(key, b"")
            with pytest.raises(ObjectStoreFailed, match=told):
                list(store.list())


def test_an_object_left_by_a_batch_delete_is_reported() -> None:
    with hostile(Manner.KEEPS_THE_LAST) as address, RemoteObjects(s3_servers.bucket(address, "hostile")) as store:
        for key in ("a", "b", "c"):
            store.create(key, b"")
        with pytest.raises(ObjectStoreFailed, match="try again"):
            store.delete(["a", "b", "c"])
        assert [info.key for info in store.list()] == ["c"]


def test_a_thousand_objects_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []
    delete = obstore.delete

    def counted(store: Any, keys: Any) -> None:
        requests.append(len(keys))
        delete(store, keys)

    with RemoteObjects(s3_servers.new_bucket(servers.moto())) as store:
        store.create("0001", b"")
        monkeypatch.setattr(obstore, "delete", counted)
        store.delete(f"{number:04}" for number in range(2002))
        assert list(store.list()) == []
    assert requests == [1000, 1000, 2]


def test_the_probe_leaves_nothing_and_is_not_listed() -> None:
    bucket = s3_servers.new_bucket(servers.moto())
    with RemoteObjects(bucket):
        assert [found for page in bucket.list() for found in page] == []
    # The leftover of a probe after a crash is no object.
    bucket.put("compactlib-probe/left", b"first")
    with RemoteObjects(bucket) as store:
        assert list(store.list()) == []


def test_listings_of_more_than_a_page_ascend() -> None:
    bucket = MemoryStore()
    keys = [f"a/{number:04}" for number in range(2500)]
    for key in keys:
        bucket.put(key, b"")
    with RemoteObjects(bucket) as store:
        assert [info.key for info in store.list("a/")] == keys


def test_a_server_that_is_away_is_named() -> None:
    away = s3_servers.bucket("http://127.0.0.1:1", "bucket")
    with pytest.raises(ObjectStoreFailed, match=r"create 'compactlib-probe/.*' failed"):
        RemoteObjects(away)


def test_a_bucket_that_does_not_exist_is_named() -> None:
    missing = s3_servers.bucket(servers.moto(), "no-such-bucket")
    with pytest.raises((ObjectStoreFailed, ObjectNotFound)):
        RemoteObjects(missing)


def test_a_fork_does_not_use_its_parent_s_client() -> None:
    with RemoteObjects(s3_servers.new_bucket(servers.moto())) as store:
        store.create("a", b"parent")

        def attempt() -> object:
            try:
                return store.get("a")
            except Closed as refused:
                store.close()
                return str(refused)

        assert "open it again" in str(in_a_fork(attempt, hangs_after_seconds=10.0))
        assert store.get("a") == b"parent"
