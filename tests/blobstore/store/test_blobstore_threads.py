# SPDX-License-Identifier: Apache-2.0
"""Many threads on one store: every answer right, every write there once, no file handle leaked."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, Deleted, Missing
from compactlib.blobstore.config import Durability
from compactlib.blobstore.errors import BlobExists
from compactlib.blobstore.segment import open_segments
from compactlib.blobstore.segment.reader import SegmentFile, SegmentHeader
from compactlib.clock import ManualClock
from compactlib.files.disk import StrPath
from compactlib.outcome import Done
from tests.harness.open_files import open_files


def content_of(key: bytes) -> bytes:
    return key * (1 + key[-1] % 40)


def in_threads(works: list[Callable[[], None]]) -> None:
    """Run all at once; the first error that one of them met is raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("durability", ["each", "group", "interval"])
def test_writers_and_readers_at_once(durability: Durability, scratch: Path) -> None:
    config = BlobStoreConfig(capacity_bytes=1 << 22, segment_bytes=1 << 14, index_max_entries=20, max_open_segments=3,
                             durability=durability)
    written: list[list[bytes]] = [[] for _ in range(3)]
    deleted: list[set[bytes]] = [set() for _ in range(3)]
    finished = threading.Event()
    with BlobStore(scratch / "store", config) as store:
        def write(number: int) -> None:
            for count in range(120):
                key = b"%d of %d" % (count, number)
                store.put(key, content_of(key))
                written[number].append(key)
                if count % 5 == 4:
                    victim = written[number][count - 3]
                    store.delete(victim)
                    deleted[number].add(victim)

        def read(seed: int) -> None:
            rng = random.Random(seed)
            while not finished.is_set():
                number = rng.randrange(3)
                if not written[number]:
                    continue
                key = rng.choice(written[number])
                gone = key in deleted[number]
                answer = store.get(key)
                assert isinstance(answer, Deleted if gone else Blob | Deleted), (key, answer)
                assert not isinstance(answer, Blob) or answer.content == content_of(key)
                assert isinstance(store.get(b"never " + key), Missing)

        def write_all() -> None:
            try:
                in_threads([partial(write, number) for number in range(3)])
            finally:
                finished.set()

        in_threads([write_all, *(partial(read, seed) for seed in range(4))])
        store.audit()
        assert store.status().records == 3 * (120 + 24)
    assert open_files(scratch) == []
    with BlobStore(scratch / "store", config) as store:
        for number in range(3):
            for key in written[number]:
                assert isinstance(store.get(key), Deleted if key in deleted[number] else Blob)


def test_of_many_puts_of_one_id_one_wins(scratch: Path) -> None:
    won: list[int] = []
    with BlobStore(scratch / "store", BlobStoreConfig(durability="group")) as store:
        def put(number: int) -> None:
            try:
                store.put(b"contested", b"%d" % number)
            except BlobExists:
                return
            won.append(number)

        in_threads([partial(put, number) for number in range(8)])
        answer = store.get(b"contested")
        assert isinstance(answer, Blob)
        assert [answer.content] == [b"%d" % number for number in won]


def test_a_group_of_writers_shares_its_syncs(scratch: Path) -> None:
    """A writer that waits behind another's sync finds its own record durable already."""
    with BlobStore(scratch / "store", BlobStoreConfig(durability="group")) as store:
        def put(number: int) -> None:
            store.put(b"%d" % number, b"x")

        in_threads([partial(put, number) for number in range(8)])
        assert not store.status().unsynced


def test_a_get_beside_a_compaction_keeps_no_file_that_this_has_removed(scratch: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """The compaction comes between the look at the index, or the opening of the file, and its being kept."""
    config = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0)
    with BlobStore(scratch / "store", config, clock=ManualClock(1000.0)) as store:
        store.put(b"a", b"a" * 1000)
        store.put(b"b", b"b" * 1000)
        store.put(b"b", b"c" * 1000, replace=True)
        store.close_active_segment()
        compacted: list[object] = []

        def opened(path: StrPath, header: SegmentHeader | None = None) -> SegmentFile:
            file = SegmentFile(path, header)
            if not compacted:
                compacted.append(None)
                compacted.append(store.compact(policy=CompactAll(min_used_fraction=0.0)))
            return file

        monkeypatch.setattr(open_segments, "SegmentFile", opened)
        assert isinstance(store.get(b"a"), Blob)
        assert isinstance(compacted[1], Done)
        assert not [path for path in open_files(scratch) if path.endswith(" (deleted)")]
        assert isinstance(store.get(b"a"), Blob)
        assert len(store._log.segments) == 1  # noqa: SLF001 - what is in the log is kept
