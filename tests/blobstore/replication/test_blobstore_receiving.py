# SPDX-License-Identifier: Apache-2.0
"""A store takes over what a peer has, from the beginning if need be, as often as the peer likes."""

from __future__ import annotations

import contextlib
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, Deleted, RecordKind
from compactlib.blobstore.errors import BlobConflict, BlobMissing
from compactlib.blobstore.store.copying import copy_store
from compactlib.blobstore.validity.verdicts import Verdict
from compactlib.clock import ManualClock
from compactlib.outcome import Done, Failed
from compactlib.runtime import Budget, RecordingObserver
from tests.blobstore.compaction_stores import compact_all, fill, garbage_store, put_twice
from tests.blobstore.replication.replica_world import EVERYTHING, take_over
from tests.tools.faults.plan import FailingFiles, Fault

CONFIG = BlobStoreConfig(capacity_bytes=1 << 18, segment_bytes=1 << 10, journal_max_entries=0, max_blob_bytes=0,
                         deleted_retention_seconds=10.0, ttl_update_buffer_seconds=0.0, pace=None,
                         stats_entries_per_second=None, durability="interval")
ALL = CompactAll(min_used_fraction=0.0)
KEYS = [b"a", b"b", b"c"]


def opened(folder: Path, clock: ManualClock) -> BlobStore:
    return BlobStore(folder, CONFIG, clock=clock, policy=ALL)


def follow(peer: BlobStore, store: BlobStore) -> None:
    """All that the peer has, from its first record on."""
    token = None
    while True:
        found = peer.entries_since(token)
        for entry in found.entries:
            take_over(peer, store, entry)
        token = found.token
        if found.at_end:
            return


STEPS = st.lists(st.tuples(st.sampled_from(["put", "put for a while", "delete", "undelete", "permanent", "wait",
                                            "follow", "compact the peer", "compact the store"]),
                           st.sampled_from(KEYS)), max_size=30)


@given(STEPS)
def test_a_peer_may_begin_again_from_the_start_at_any_time(steps: list[tuple[str, bytes]]) -> None:
    clock = ManualClock(1_000_000.0)
    with (tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "peer", clock) as peer,
          opened(Path(folder) / "store", clock) as store):
        used: set[bytes] = set()
        for step, key in steps:
            clock.advance(1.0)
            if step.startswith("put"):
                # An id is used once, also where a compaction has removed all trace of it.
                if key in used:
                    continue
                used.add(key)
            try:
                do(step, key, peer, store, clock)
            except (BlobConflict, BlobMissing):
                continue
        follow(peer, store)
        for key in KEYS:
            here, there = store.get(key), peer.get(key)
            if isinstance(there, Blob):
                assert isinstance(here, Blob), (key, here, there)
                assert (here.content, here.info.expires_at) == (there.content, there.info.expires_at)
                assert here.info.life_version == there.info.life_version
            else:
                assert not isinstance(here, Blob), (key, here, there)
        records = store.status().records
        for _ in range(2):
            follow(peer, store)
        assert store.status().records == records
        assert not store.verify().findings
        store.audit()


def do(step: str, key: bytes, peer: BlobStore, store: BlobStore, clock: ManualClock) -> None:
    """One step of the two stores' lives."""
    match step:
        case "put":
            peer.put(key, key * 50)
        case "put for a while":
            peer.put(key, key * 50, ttl_seconds=15.0)
        case "delete":
            peer.delete(key)
        case "undelete":
            peer.undelete(key)
        case "permanent":
            peer.ttl_update(key)
        case "wait":
            clock.advance(6.0)
        case "follow":
            follow(peer, store)
        case _:
            chosen = peer if step == "compact the peer" else store
            chosen.close_active_segment()
            assert not isinstance(chosen.compact(budget=Budget()), Failed)


def test_a_put_from_the_start_does_not_bring_a_deleted_blob_back(scratch: Path) -> None:
    """Its content was compacted away, so that its PUT is unknown; that used to be written again."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "store", clock) as store:
        put = {"op_time": clock.now(), "expires_at": None}
        store.append_replicated(RecordKind.PUT, b"a", b"content", **put)  # type: ignore[arg-type]
        deleted = store.delete(b"a")
        clock.advance(11.0)
        store.close_active_segment()
        store.compact()
        assert [entry.kind for entry in store.snapshot().history(b"a")] == [RecordKind.DELETE]
        answered = store.append_replicated(RecordKind.PUT, b"a", b"content", **put)  # type: ignore[arg-type]
        assert answered.kind == RecordKind.DELETE
        assert isinstance(store.get(b"a"), Deleted)
        assert deleted.life_version == 0
        # In a later life it is news.
        store.append_replicated(RecordKind.PUT, b"a", b"content", life_version=1, **put)  # type: ignore[arg-type]
        assert isinstance(store.get(b"a"), Blob)


def test_an_old_delete_does_not_end_a_later_life(scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "store", clock) as store:
        store.put(b"a", b"content")
        store.delete(b"a")
        store.undelete(b"a")
        store.close_active_segment()
        store.compact()
        assert [entry.kind for entry in store.snapshot().history(b"a")] == [RecordKind.PUT, RecordKind.UNDELETE]
        store.append_replicated(RecordKind.DELETE, b"a", op_time=clock.now())
        assert isinstance(store.get(b"a"), Blob)
        store.append_replicated(RecordKind.DELETE, b"a", op_time=clock.now(), life_version=1)
        store.append_replicated(RecordKind.UNDELETE, b"a", op_time=clock.now(), life_version=1)
        assert isinstance(store.get(b"a"), Deleted)


def test_a_put_is_the_same_with_or_without_its_expiry_once_it_is_permanent(scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        peer.put(b"a", b"content", ttl_seconds=1_000.0)
        follow(peer, store)
        peer.ttl_update(b"a")
        follow(peer, store)
        follow(peer, store)
        clock.advance(2_000.0)
        assert isinstance(store.get(b"a"), Blob)
        assert [entry.kind for entry in store.snapshot().history(b"a")] == [RecordKind.PUT, RecordKind.TTL_UPDATE]


def test_an_update_of_the_blob_before_does_not_stand_for_that_of_its_successor(scratch: Path) -> None:
    """The peer's was taken for known, so that the blob expired here and not there."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        store.put(b"a", b"before", ttl_seconds=1_000.0)
        store.ttl_update(b"a")
        clock.advance(1.0)
        store.put(b"a", b"after", ttl_seconds=1_000.0, replace=True)
        follow(store, peer)
        peer.ttl_update(b"a")
        follow(peer, store)
        clock.advance(2_000.0)
        for each in (peer, store):
            found = each.get(b"a")
            assert isinstance(found, Blob)
            assert (found.content, found.info.expires_at) == (b"after", None)


def test_an_update_of_the_blob_before_does_not_make_its_successor_permanent(scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        peer.put(b"a", b"before", ttl_seconds=1_000.0)
        peer.ttl_update(b"a")
        follow(peer, store)
        clock.advance(1.0)
        peer.put(b"a", b"after", ttl_seconds=1_000.0, replace=True)
        for _ in range(2):
            follow(peer, store)
            follow(store, peer)
        assert [each.info(b"a").expires_at for each in (peer, store)] == [1_001_001.0] * 2  # type: ignore[union-attr]


def test_two_puts_of_one_blob_are_mended_by_the_next_compaction(folder: Path, clock: ManualClock) -> None:
    """They kept their segments from being compacted, until the blob was deleted."""
    with garbage_store(folder, clock) as store:
        put_twice(store, b"b0")
        fill(store, 10, random.Random(1), first=100)
        store.close_active_segment()
        assert not store.verify().findings
        report = compact_all(store)
        assert not report.left_out
        assert report.verdicts[Verdict.REPLACED] == 1
        found = store.get(b"b0")
        assert isinstance(found, Blob)
        assert found.content == b"again"
        assert [entry.kind for entry in store.snapshot().history(b"b0")] == [RecordKind.PUT]


def test_a_blob_whose_content_was_overwritten_here_comes_back_with_a_later_life(scratch: Path) -> None:
    """Its PUT was taken for known, so that the blob lived on at the peer, and was missing here for ever."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        peer.put(b"a", b"content", ttl_seconds=1_000.0)
        follow(peer, store)
        store.delete(b"a")
        clock.advance(8.0)
        peer.delete(b"a")
        clock.advance(3.0)
        store.close_active_segment()
        erased = store.hard_delete(budget=Budget())
        assert isinstance(erased, Done)
        assert erased.stats.records == 1
        follow(peer, store)
        assert store.get(b"a") == Deleted(b"a", 1_000_000.0, 0, content_gone=True)
        peer.undelete(b"a")
        for _ in range(2):
            follow(peer, store)
            follow(store, peer)
        for each in (peer, store):
            found = each.get(b"a")
            assert isinstance(found, Blob)
            assert (found.content, found.info.life_version, found.info.expires_at) == (b"content", 1, 1_001_000.0)
        assert [entry.kind for entry in store.snapshot().history(b"a")][-2:] == [RecordKind.DELETE, RecordKind.PUT]
        assert copy_store(store, scratch / "copy", CONFIG, clock=clock).left_out == 1
        with opened(scratch / "copy", clock) as copy:
            assert copy.get(b"a") == found


def test_a_blob_whose_content_is_overwritten_cannot_be_made_permanent(scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "store", clock) as store:
        store.put(b"a", b"content", ttl_seconds=1_000.0)
        store.delete(b"a")
        clock.advance(11.0)
        store.close_active_segment()
        store.hard_delete(budget=Budget())
        store.append_replicated(RecordKind.UNDELETE, b"a", op_time=clock.now(), life_version=1)
        with pytest.raises(BlobMissing, match="has lost its content"):
            store.ttl_update(b"a")


@pytest.mark.parametrize("word", ["DELETE", "UNDELETE", "TTL_UPDATE"])
def test_a_peers_word_changes_no_container(word: str, scratch: Path) -> None:
    """Two replicas have put the blob into two containers: what one says of it holds for the PUT of the other."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "store", clock) as store:
        store.put(b"a", b"content", ttl_seconds=20.0, container=2)
        clock.advance(1.0)
        if word == "UNDELETE":
            store.delete(b"a")
        store.append_replicated(RecordKind[word], b"a", op_time=clock.now(), life_version=int(word == "UNDELETE"),
                                expires_at=None if word == "TTL_UPDATE" else 1_000_020.0, container=1)
        assert store.entries_since().entries[0].container == 2


def test_a_blob_made_permanent_by_a_clock_behind_its_put_is_so_at_the_peer(scratch: Path) -> None:
    """What was told as its newest change was before its PUT, whose writer's clock was ahead; so the update was taken
    for one of an earlier PUT, and the blob expired at the peer."""
    clock, ahead = ManualClock(1_000_000.0), ManualClock(1_000_005.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", ahead) as store:
        store.put(b"a", b"content", ttl_seconds=100.0)
        follow(store, peer)
        peer.ttl_update(b"a")
        peer.delete(b"a")
        peer.undelete(b"a")
        follow(peer, store)
        assert [each.info(b"a").expires_at for each in (peer, store)] == [None, None]  # type: ignore[union-attr]


@pytest.mark.parametrize("order", list(itertools.permutations(["PUT", "earlier", "later"])), ids="-".join)
def test_a_ttl_update_holds_for_the_put_before_it_in_any_order(order: Sequence[str], scratch: Path) -> None:
    """With an update of an earlier PUT here, the later one was taken for known, and its PUT expired."""
    clock = ManualClock(1_000_030.0)
    with opened(scratch / "store", clock) as store:
        for each in order:
            if each == "PUT":
                store.append_replicated(RecordKind.PUT, b"a", b"content", op_time=1_000_015.0, expires_at=1_000_100.0)
            else:
                store.append_replicated(RecordKind.TTL_UPDATE, b"a",
                                        op_time=1_000_010.0 if each == "earlier" else 1_000_020.0)
        assert store.info(b"a").expires_at is None  # type: ignore[union-attr]
        before = store.snapshot().last_sequence
        store.append_replicated(RecordKind.TTL_UPDATE, b"a", op_time=1_000_020.0)
        assert store.snapshot().last_sequence == before


class Meanwhile(ManualClock):
    """A clock during whose first sleep something happens."""

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.then: Callable[[], object] | None = None

    def sleep(self, seconds: float) -> None:
        """Pass the time, and do what is to be done meanwhile."""
        super().sleep(seconds)
        then, self.then = self.then, None
        if then is not None:
            then()


def deleted_in_two_places(peer: BlobStore, store: BlobStore, clock: ManualClock) -> None:
    """A delete that is in effect here, and can still be undone at the peer."""
    peer.put(b"a", b"content", ttl_seconds=1_000.0)
    peer.put(b"b", b"another")
    follow(peer, store)
    store.delete(b"a")
    store.delete(b"b")
    clock.advance(8.0)
    peer.delete(b"a")
    clock.advance(3.0)
    store.close_active_segment()
    store.flush()


@pytest.mark.parametrize("again", ["open", "hard delete", "compact"])
def test_a_hard_delete_that_was_refused_overwrites_no_blob_that_came_back(again: str, tmp_path: Path) -> None:
    """Finished later, it overwrote the content of a blob that a peer had undeleted meanwhile."""
    for at in range(1, 14):
        clock, left = ManualClock(1_000_000.0), [0]

        def refuses(number: int, left: list[int] = left) -> Fault | None:
            left[0] -= 1
            return Fault.REFUSED if left[0] == 0 else None

        folder = tmp_path / str(at)
        folder.mkdir()
        with opened(folder / "peer", clock) as peer, contextlib.ExitStack() as stack:
            store = stack.enter_context(BlobStore(folder / "store", CONFIG, clock=clock, policy=ALL,
                                                  files=FailingFiles(faults=refuses)))
            deleted_in_two_places(peer, store, clock)
            left[0] = at
            store.hard_delete(budget=Budget())
            left[0] = 0
            peer.undelete(b"a")
            follow(peer, store)
            if again == "open":
                store.close()
                store = stack.enter_context(opened(folder / "store", clock))
            elif again == "compact":
                assert not isinstance(store.compact(budget=Budget()), Failed)
            else:
                assert isinstance(store.hard_delete(budget=Budget()), Done)
            found = store.get(b"a")
            assert isinstance(found, Blob), f"refused at step {at}"
            assert found.content == b"content"
            assert not store.verify().findings


def test_a_hard_delete_that_waits_overwrites_no_blob_that_came_back(scratch: Path) -> None:
    clock = Meanwhile(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        deleted_in_two_places(peer, store, clock)

        def comes_back() -> None:
            peer.undelete(b"a")
            follow(peer, store)

        clock.then = comes_back
        outcome = store.hard_delete(budget=Budget(bytes_per_second=100.0, clock=clock))
        assert isinstance(outcome, Done)
        assert outcome.stats.records == 1
        assert isinstance(store.get(b"a"), Blob)
        assert store.get(b"b", EVERYTHING) == Deleted(b"b", 1_000_000.0, 0, content_gone=True)


@pytest.mark.parametrize("word", ["undelete", "permanent"])
def test_a_blob_that_comes_back_while_a_compaction_commits_without_it_has_its_content(word: str, scratch: Path) -> None:
    """Its PUT was taken for known, and went with the commit."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        if word == "undelete":
            deleted_in_two_places(peer, store, clock)
        else:
            peer.put(b"a", b"content", ttl_seconds=9.0)
            peer.put(b"c", b"stays")
            follow(peer, store)
            peer.ttl_update(b"a")
            clock.advance(11.0)
            store.close_active_segment()

        class ComesBack:
            """A fence behind which a peer is heard."""

            @contextlib.contextmanager
            def guard(self) -> Iterator[None]:
                """See `CommitFence`."""
                if word == "undelete":
                    peer.undelete(b"a")
                follow(peer, store)
                yield

        outcome = store.compact(budget=Budget(), fence=ComesBack())
        assert isinstance(outcome, Done)
        for each in (store, peer):
            found = each.get(b"a")
            assert isinstance(found, Blob)
            assert found.content == b"content"
        assert not store.verify().findings
        records = store.status().records
        follow(peer, store)
        assert store.status().records == records


def test_an_update_that_is_told_later_makes_no_successor_permanent(scratch: Path) -> None:
    """It was told with the time of the undelete after it."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        peer.put(b"a", b"before", ttl_seconds=1_000.0)
        follow(peer, store)
        peer.ttl_update(b"a")
        clock.advance(1.0)
        store.put(b"a", b"after", ttl_seconds=1_000.0, replace=True)
        clock.advance(1.0)
        peer.delete(b"a")
        peer.undelete(b"a")
        for _ in range(2):
            follow(peer, store)
            follow(store, peer)
        assert [each.info(b"a").expires_at for each in (peer, store)] == [1_001_001.0] * 2  # type: ignore[union-attr]


def test_what_changed_since_it_was_told_is_taken_over_when_it_is_told_again(scratch: Path) -> None:
    """The new content came with the expiry of the old one, and stayed so."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        peer.put(b"a", b"before")
        told = peer.entries_since()
        peer.put(b"a", b"after", ttl_seconds=100.0, container=3, replace=True)
        for entry in told.entries:
            take_over(peer, store, entry)
        for entry in peer.entries_since(told.token).entries:
            take_over(peer, store, entry)
        assert store.get(b"a") == peer.get(b"a")


@pytest.mark.parametrize("ahead_is", ["put", "update"])
def test_a_replacement_is_later_than_all_that_it_replaces(ahead_is: str, scratch: Path) -> None:
    """It was only later than the newest record, so that a PUT or an update from a clock ahead outlived it: the content
    before it came back, or it was permanent."""
    clock, ahead = ManualClock(1_000_000.0), ManualClock(1_000_005.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", ahead) as store:
        if ahead_is == "put":
            store.put(b"a", b"before")
            follow(store, peer)
        else:
            peer.put(b"a", b"before", ttl_seconds=500.0)
            follow(peer, store)
            store.ttl_update(b"a")
            follow(store, peer)
        peer.delete(b"a")
        peer.undelete(b"a")
        peer.put(b"a", b"after", ttl_seconds=900.0, replace=True)
        for _ in range(2):
            follow(store, peer)
            follow(peer, store)
        copy_store(peer, scratch / "copy", CONFIG, clock=clock)
        with opened(scratch / "copy", clock) as copy:
            for each in (peer, store, copy):
                found = each.get(b"a")
                assert isinstance(found, Blob)
                assert found.content == b"after"
                assert found.info.expires_at is not None


def test_a_copy_of_a_successor_is_not_as_permanent_as_its_predecessor(scratch: Path) -> None:
    """The delete that ended the one before it said that it was permanent, and the copy did not have that one."""
    clock = ManualClock(1_000_100.0)
    with opened(scratch / "store", clock) as store:
        store.append_replicated(RecordKind.PUT, b"a", b"before", op_time=1_000_002.0, permanent=True)
        store.append_replicated(RecordKind.DELETE, b"a", op_time=1_000_025.0, permanent=True)
        store.append_replicated(RecordKind.PUT, b"a", b"after", op_time=1_000_020.0, expires_at=1_000_320.0,
                                life_version=1)
        found = store.get(b"a")
        assert isinstance(found, Blob)
        assert found.info.expires_at == 1_000_320.0
        copy_store(store, scratch / "copy", CONFIG, clock=clock)
        with opened(scratch / "copy", clock) as copy:
            assert copy.get(b"a") == found


def test_a_copy_takes_of_two_puts_of_one_time_the_one_that_counts(scratch: Path) -> None:
    """The content of the one came with the expiry of the other."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "peer", clock) as peer, opened(scratch / "store", clock) as store:
        store.put(b"a", b"a")
        peer.put(b"a", b"b", ttl_seconds=500.0)
        follow(peer, store)
        assert copy_store(store, scratch / "copy", CONFIG, clock=clock).left_out == 1
        with opened(scratch / "copy", clock) as copy:
            assert copy.get(b"a") == store.get(b"a") == peer.get(b"a")


WORDS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(
    ["put", "put for a while", "replace", "replace for a while", "delete", "undelete", "permanent", "wait", "follow",
     "compact"])), min_size=1, max_size=25)


@example([(0, "put"), (0, "wait"), (1, "put"), (0, "replace"), (0, "delete"), (0, "undelete"), (1, "permanent"),
          (1, "delete")], [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)])
@example([(1, "put for a while"), (1, "delete"), (1, "undelete"), (2, "put")],
         [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)])
@given(WORDS, st.permutations([(here, there) for here in range(3) for there in range(3) if here != there]))
def test_replicas_that_put_one_id_each_come_to_agree(words: list[tuple[int, str]],
                                                     order: list[tuple[int, int]]) -> None:
    """Three replicas write what they like, and follow each other whenever; once each has heard of all, they agree."""
    clock = ManualClock(1_000_000.0)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        replicas = [stack.enter_context(opened(Path(folder) / str(number), clock)) for number in range(3)]
        for number, word in words:
            # Times of two replicas may be equal.
            store = replicas[number]
            with contextlib.suppress(BlobConflict, BlobMissing):
                match word:
                    case "put" | "put for a while" | "replace" | "replace for a while":
                        store.put(b"a", b"%d of %d" % (store.status().records, number), replace="replace" in word,
                                  ttl_seconds=500.0 if "while" in word else None)
                    case "delete":
                        store.delete(b"a")
                    case "undelete":
                        store.undelete(b"a")
                    case "permanent":
                        store.ttl_update(b"a")
                    case "wait":
                        clock.advance(1.0)
                    case "follow":
                        follow(replicas[(number + 1) % 3], store)
                    case _:
                        store.close_active_segment()
                        assert not isinstance(store.compact(budget=Budget()), Failed)
        for _ in range(3):
            for here, there in order:
                follow(replicas[there], replicas[here])
        answers = [store.get(b"a") for store in replicas]
        assert len({repr(type(each)) for each in answers}) == 1, answers
        blobs = [each for each in answers if isinstance(each, Blob)]
        assert len({(each.content, each.info.put_at, each.info.expires_at, each.info.life_version)
                    for each in blobs}) <= 1, answers
        records = [store.status().records for store in replicas]
        for here, there in order:
            follow(replicas[there], replicas[here])
        assert [store.status().records for store in replicas] == records
        for store in replicas:
            assert not store.verify().findings
            store.audit()


def test_which_of_two_puts_counts_is_told(scratch: Path) -> None:
    clock, observer = ManualClock(1_000_000.0), RecordingObserver()
    with opened(scratch / "peer", clock) as peer, BlobStore(scratch / "store", CONFIG, clock=clock,
                                                            observer=observer) as store:
        store.put(b"a", b"here")
        store.put(b"b", b"here, later" * 2)
        clock.advance(1.0)
        peer.put(b"a", b"there, later")
        follow(peer, store)
        follow(store, peer)
        found = store.get(b"a")
        assert isinstance(found, Blob)
        assert found.content == b"there, later"
        told = [fields for name, fields in observer.events if name == "blobstore_put_twice"]
        assert told == [{"store": "store", "id": b"a", "kept_put_at": 1_000_001.0, "other_put_at": 1_000_000.0,
                         "is_here": False}]


@pytest.mark.parametrize("word", list(RecordKind))
def test_an_unknown_blob_is_taken_over_as_it_is(word: RecordKind, scratch: Path) -> None:
    with opened(scratch / "store", ManualClock(1_000_000.0)) as store:
        entry = store.append_replicated(word, b"a", op_time=5.0, life_version=word == RecordKind.UNDELETE)
        assert (entry.kind, entry.op_time_ms) == (word, 5_000)
        assert store.append_replicated(word, b"a", op_time=5.0, life_version=word == RecordKind.UNDELETE) == entry
