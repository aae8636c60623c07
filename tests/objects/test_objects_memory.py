# SPDX-License-Identifier: Apache-2.0
"""The store in memory passes the conformance kit, and so do obstore's in memory and the kit without pytest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import obstore
import pytest
from obstore import exceptions
from obstore.store import MemoryStore

from compactlib.clock import ManualClock
from compactlib.objects import (
    Digest,
    MemoryObjects,
    ObjectInfo,
    ObjectStoreFailed,
    RemoteObjects,
)


def test_age_is_by_the_clock_that_was_given() -> None:
    clock = ManualClock(1000.0)
    with MemoryObjects(clock=clock) as store:
        store.create("a", b"1")
        clock.advance(50)
        store.create("b", b"22")
        assert list(store.list()) == [ObjectInfo("a", 1, 1000.0), ObjectInfo("b", 2, 1050.0)]


def test_a_delete_of_one_key_is_not_one_of_its_letters() -> None:
    with MemoryObjects() as store:
        for key in ("a", "b", "ab"):
            store.create(key, b"")
        store.delete("ab")
        assert [info.key for info in store.list()] == ["a", "b"]


def test_digest_is_that_of_other_languages() -> None:
    # BLAKE2b-160 of "abc", by the standard library of another language.
    digest = Digest.of(b"abc")
    assert digest.hex == "384264f676f39536840523f284921cdc68b6846b"


@pytest.mark.parametrize("refused", [exceptions.AlreadyExistsError, exceptions.PreconditionError])
def test_a_refused_delete_does_not_raise_object_exists(
        refused: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was `ObjectExists`, which a store says of a lease, too."""
    store = RemoteObjects(MemoryStore())
    store.create("key", b"value")

    def refuses(*_: object) -> None:
        raise refused("there is a lease on it")

    monkeypatch.setattr(obstore, "delete", refuses)
    with pytest.raises(ObjectStoreFailed, match="a lease on it"):
        store.delete(["key"])
    with pytest.raises(ObjectStoreFailed, match="a lease on it"):
        store.delete(["key", "other"])


def test_a_listing_of_a_prefix_requests_no_later_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    store, pages = RemoteObjects(MemoryStore()), []
    for key in ("runs/a", "runs/a1", "runs/a2", *(f"runs/b{number:04}" for number in range(2000))):
        store.create(key, b"")
    given = obstore.list

    def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for page in given(*args, **kwargs):
            pages.append(page)
            yield page

    monkeypatch.setattr(obstore, "list", counted)
    assert [info.key for info in store.list("runs/a")] == ["runs/a", "runs/a1", "runs/a2"]
    assert len(pages) == 1
