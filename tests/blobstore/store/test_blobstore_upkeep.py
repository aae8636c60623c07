# SPDX-License-Identifier: Apache-2.0
"""A store compacts itself while it is open, unless it is told not to; closing it ends that."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobChoice, BlobReader, BlobStore, BlobStoreConfig, BlobView, StatsBased
from compactlib.blobstore.errors import StoreFull
from compactlib.blobstore.store.copying import copy_store
from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, InvalidInput
from compactlib.outcome import Skipped
from compactlib.runtime import Observer, OnRequest, Periodic
from tests.harness.forks import check_fork

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, max_blob_bytes=600, pace=None,
                         deleted_retention_seconds=0.0, durability="interval", stats_entries_per_second=None)
SECONDS = 60.0


def garbage(store: BlobStore, blobs: int) -> None:
    for number in range(blobs):
        store.put(b"%d" % number, b"x" * 900, replace=True)
        store.delete(b"%d" % number)


class Until(Observer):
    """Lets a test wait for an event."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen = threading.Event()

    def event(self, name: str, fields: Any) -> None:
        if name == self.name:
            self.seen.set()

    def wait(self) -> None:
        assert self.seen.wait(SECONDS)


def threads() -> list[str]:
    return sorted(each.name for each in threading.enumerate() if "blob store" in each.name
                  or "compaction manager" in each.name)


def test_a_store_that_is_opened_again_gives_space_back_by_itself(scratch: Path) -> None:
    with BlobStore(scratch / "store", attrs.evolve(CONFIG, triggers=())) as store:
        garbage(store, 42)
        full = store.status().segments
        assert store.triggers == ()
        assert store.upkeep is None
        assert threads() == []
    done = Until("blobstore_compaction_done")
    with BlobStore(scratch / "store", CONFIG, observer=done) as store:
        done.wait()
        assert store.status().segments < full / 2
        assert [type(each) for each in store.triggers] == [Periodic, OnRequest]
        assert store.upkeep is not None
        assert store.upkeep.is_active
        assert threads() != []
        store.audit()
    assert threads() == []


def test_a_store_that_becomes_full_gives_space_back_by_itself(scratch: Path) -> None:
    """Three times its capacity goes through it; a put that finds no room has asked for it, and finds it later."""
    with BlobStore(scratch / "store", CONFIG) as store:
        for number in range(200):
            while True:
                try:
                    store.put(b"%d" % number, b"x" * 900)
                    store.delete(b"%d" % number)
                    break
                except StoreFull:
                    store.compactions.ownership.wait()
        assert store.status().next_sequence > 400
        store.audit()


def test_no_manager_where_the_host_has_the_clock_and_on_request_where_it_says_so(scratch: Path) -> None:
    with BlobStore(scratch / "store", CONFIG, clock=ManualClock(1000.0)) as store:
        assert store.triggers == ()
    done = Until("blobstore_compaction_done")
    config = attrs.evolve(CONFIG, triggers=(OnRequest(),))
    with BlobStore(scratch / "store", config, clock=ManualClock(1000.0), observer=done,
                   policy=StatsBased(min_used_fraction=0.0)) as store:
        assert store.triggers == (OnRequest(),)
        garbage(store, 42)
        assert store.status().free_segments <= 2
        store.clock.sleep(0.01)
        while not done.seen.is_set():
            with contextlib.suppress(StoreFull):
                garbage(store, 5)
            done.seen.wait(0.01)


@pytest.mark.parametrize("triggers", [(Periodic(), Periodic()), ("daily",), [Periodic()], Periodic()])
def test_what_is_no_trigger_leaves_the_folder_free(triggers: Any, scratch: Path) -> None:
    with pytest.raises(InvalidInput):
        BlobStore(scratch / "store", attrs.evolve(CONFIG, triggers=triggers))
    with BlobStore(scratch / "store", CONFIG) as store:
        assert threads() != []
        store.put(b"a", b"")
    assert threads() == []


def test_readers_and_copies_have_none(scratch: Path) -> None:
    with BlobStore(scratch / "store", attrs.evolve(CONFIG, triggers=())) as store:
        store.put(b"a", b"content")
        with BlobReader(scratch / "store") as reader:
            copy_store(reader, scratch / "copy", CONFIG)
            assert threads() == []


@attrs.frozen
class Held:
    """A policy that waits until it is let go, and says when it was asked."""

    asked: threading.Event = attrs.field(factory=threading.Event)
    goes: threading.Event = attrs.field(factory=threading.Event)
    does: Callable[[], object] = bool
    name: str = "held"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        self.does()
        self.asked.set()
        assert self.goes.wait(SECONDS)
        return BlobChoice(why="it was let go")


def test_closing_waits_for_what_is_being_done(scratch: Path) -> None:
    policy = Held()
    store = BlobStore(scratch / "store", CONFIG, policy=policy)
    assert policy.asked.wait(SECONDS)
    closing = threading.Thread(target=store.close)
    closing.start()
    assert store.status().is_busy
    outcome = store.compact()
    assert isinstance(outcome, Skipped)
    assert outcome.is_busy
    policy.goes.set()
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert threads() == []
    with pytest.raises(Closed):
        store.put(b"a", b"")
    BlobStore(scratch / "store", attrs.evolve(CONFIG, triggers=())).close()


def test_closing_from_within_is_busy_and_changes_nothing(scratch: Path) -> None:
    stores: list[BlobStore] = []
    ready, refused = threading.Event(), list[BaseException]()

    def close() -> None:
        assert ready.wait(SECONDS)
        try:
            stores[0].close()
        except Busy as error:
            refused.append(error)

    policy = Held(does=close)
    stores.append(BlobStore(scratch / "store", CONFIG, policy=policy))
    ready.set()
    policy.goes.set()
    assert policy.asked.wait(SECONDS)
    assert len(refused) == 1
    stores[0].put(b"a", b"it is open")
    stores[0].close()
    assert threads() == []


def test_a_store_that_is_open_for_a_moment(scratch: Path) -> None:
    for number in range(50):
        with BlobStore(scratch / "store", CONFIG) as store:
            store.put(b"%d" % number, b"content")
    with BlobStore(scratch / "store", attrs.evolve(CONFIG, triggers=())) as store:
        assert store.status().records == 50
        assert store.verify().is_sound
    assert threads() == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_refused_and_leaves_the_parent_its_manager(scratch: Path) -> None:
    count, parent = itertools.count(), os.getpid()

    def write(store: BlobStore) -> None:
        if os.getpid() != parent:
            assert store.upkeep is None
        store.put(b"%d" % next(count), b"content")

    assert isinstance(check_fork(lambda: BlobStore(scratch / "store", CONFIG), write, BlobStore.close), Closed)
    assert threads() == []


def test_a_failing_policy_is_told_and_tried_again(scratch: Path) -> None:
    class Failing:
        name = "failing"

        def choose(self, view: BlobView, now: float) -> BlobChoice:
            raise ValueError("the policy's own")

    told = Until("compaction_failing")
    with BlobStore(scratch / "store", CONFIG, policy=Failing(), observer=told) as store:
        told.wait()
        assert store.upkeep is not None
        assert "the policy's own" in store.upkeep.last_error
        assert store.status().last_error == store.upkeep.last_error
        assert store.status().failures > 0
        store.audit()
        store.put(b"a", b"and it goes on")
