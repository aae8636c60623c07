# SPDX-License-Identifier: Apache-2.0
"""`ObjectStore.audit`: a store that lists what cannot have been created, or in no order, says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.errors import CompactlibError
from compactlib.objects import LocalObjects, ObjectInfo, ObjectStoreFailed, RemoteObjects
from compactlib.objects.audit import audit_listing
from tests.harness.objects import s3_servers
from tests.harness.objects.hostile_s3 import Manner, hostile


@pytest.mark.parametrize(("listed", "told"), [
    ([ObjectInfo("b", 1, 0.0), ObjectInfo("a", 1, 0.0)], "'a' after 'b'"),
    ([ObjectInfo("a", 1, 0.0), ObjectInfo("a", 1, 0.0)], "'a' after 'a'"),
    ([ObjectInfo("a", -1, 0.0)], "-1 bytes"),
    ([ObjectInfo("a", 1, float("nan"))], "created at nan"),
    ([ObjectInfo("a b", 1, 0.0)], "cannot have been created"),
])
def test_a_listing_that_cannot_be(listed: list[ObjectInfo], told: str) -> None:
    with pytest.raises(CompactlibError, match=told) as found:
        audit_listing("a store", listed)
    assert "a store" in str(found.value)


def test_a_file_of_somebody_else_in_the_folder_is_named(tmp_path: Path) -> None:
    with LocalObjects(tmp_path) as store:
        store.create("ranges/a", b"1")
        (tmp_path / ".incoming" / "of a writer").write_bytes(b"")
        store.audit()
        (tmp_path / "ranges" / "not a key.txt").write_bytes(b"2")
        with pytest.raises(CompactlibError, match=r"'ranges/not a key\.txt', which cannot have been created here"):
            store.audit()


def test_a_server_that_lists_in_disorder_is_found() -> None:
    with hostile(Manner.LISTS_IN_DISORDER) as address, RemoteObjects(s3_servers.bucket(address, "hostile")) as store:
        store.create("a", b"")
        store.audit()
        store.create("b", b"")
        with pytest.raises(ObjectStoreFailed, match="out of order"):
            store.audit()
