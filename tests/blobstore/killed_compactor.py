"""A process that writes and compacts until it is killed: `python -m tests.blobstore.killed_compactor FOLDER SEED`.

It tells, in one write each, what it is about to do and what was done, so that whoever kills it knows what was promised.
Compactions run in a second thread; segments are small, so that their steps come often.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

from compactlib.blobstore.compactor import BlobCompactor
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import BlobConflict, BlobMissing, StoreFull
from compactlib.blobstore.hard_delete import HardDeleter
from compactlib.blobstore.store import BlobStore
from compactlib.budget import Budget
from compactlib.outcome import Failed
from tests.blobstore.compaction_stores import plan_of

CONFIG = BlobStoreConfig(capacity_bytes=400 * 4096, segment_bytes=4096, deleted_retention_seconds=0.0,
                         journal_max_entries=1, index_max_entries=9, compaction_bytes_per_second=None,
                         ttl_update_buffer_seconds=0.0, durability="group", swap_segments=2)


def content_of(number: int) -> bytes:
    """What blob `number` holds."""
    return b"%d;" % number * (1 + number * 7 % 40)


def open_killed(folder: str) -> BlobStore:
    """The store that is killed again and again."""
    return BlobStore(folder, CONFIG, name="store")


def tell(line: str) -> None:
    """Hand over one line, so that it is in the pipe whatever happens next."""
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def compact_for_ever(store: BlobStore, seed: int) -> None:
    """One compaction after the other, of all segments or of some, and a hard delete now and then."""
    rng = random.Random(seed)
    compactor = BlobCompactor(store)
    compactor.resume(budget=Budget())
    deleter = HardDeleter(store, compactor)
    while True:
        eligible = store.snapshot().eligible()
        if eligible:
            chosen = eligible[::rng.choice((1, 1, 2, 3))]
            tell("compacting")
            outcome = compactor.compact(plan_of(store, chosen, reference=store.clock.now()), budget=Budget())
            tell(f"compacted {outcome}" if isinstance(outcome, Failed) else "compacted")
        if rng.random() < 0.3:
            erased = deleter.run(budget=Budget())
            tell(f"hard deleted {erased}" if isinstance(erased, Failed) else "hard deleted")


def told_for_ever(store: BlobStore, seed: int) -> None:
    """As `compact_for_ever`, and tells what ended it."""
    try:
        compact_for_ever(store, seed)
    except BaseException as error:
        tell(f"compacted Failed(error={error!r})")
        raise


def live(store: BlobStore, seed: int, first: int) -> None:
    """Put, delete and undelete for ever."""
    rng = random.Random(seed)
    number = first
    while True:
        try:
            if rng.random() < 0.55:
                number += 1
                tell(f"put? {number}")
                store.put(f"b{number}", content_of(number))
                tell(f"put {number}")
            else:
                chosen = rng.randint(max(1, number - 400), max(number, 1))
                tell(f"delete? {chosen}")
                store.delete(f"b{chosen}")
                tell(f"delete {chosen}")
        except (BlobConflict, BlobMissing, StoreFull):
            continue


def main(folder: str, seed: int, first: int) -> None:
    """Live until killed."""
    store = open_killed(folder)
    tell("opened")
    threading.Thread(target=told_for_ever, args=(store, seed), daemon=True).start()
    live(store, seed, first)


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
