# SPDX-License-Identifier: Apache-2.0
"""A process that writes and compacts until it is killed: `-m tests.blobstore.compaction.run.killed_compactor FOLDER
SEED FIRST`.

It tells, in one write each, what it is about to do and what was done, so that whoever kills it knows what was promised.
Compactions run in a second thread; segments are small, so that their steps come often. The writer keeps a window of
blobs alive and waits for the compactions when it is far ahead, so that the store does not grow with the kills. In every
other seed tombstones are purged, too.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from pathlib import Path

import attrs

from compactlib.blobstore import BlobStore, BlobStoreConfig, Questions
from compactlib.blobstore.errors import BlobConflict, BlobMissing
from compactlib.outcome import Failed
from compactlib.runtime import Budget
from tests.blobstore.compaction_stores import plan_of

WINDOW = 300
"""How many blobs behind the newest one may be alive."""
MOST_AHEAD = {True: 400, False: 120}
"""How many records are written at most between the ends of two compactions, with purging and without: without, every
deleted blob leaves a tombstone for ever."""
CONFIG = BlobStoreConfig(capacity_bytes=4000 * 4096, segment_bytes=4096, deleted_retention_seconds=0.0,
                         journal_max_entries=1, index_max_entries=25, pace=None,
                         ttl_update_buffer_seconds=0.0, durability="group", swap_segments=2)


def content_of(number: int) -> bytes:
    """What blob `number` holds."""
    return b"%d;" % number * (1 + number * 7 % 40)


def open_killed(folder: str, *, purge: bool) -> BlobStore:
    """The store that is killed again and again."""
    return BlobStore(folder, attrs.evolve(CONFIG, purge_tombstones=purge), name="store")


class Lead:
    """How far the writer is ahead of the compactions."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records = 0
        self._changed = threading.Condition()

    def grow(self) -> None:
        """One more record, as soon as there may be one."""
        with self._changed:
            self._changed.wait_for(lambda: self._records < self._most)
            self._records += 1

    def lose(self, records: int) -> None:
        """A compaction has caught up, or nobody has to be waited for any more."""
        with self._changed:
            self._records = -records
            self._changed.notify_all()


def tell(line: str) -> None:
    """Hand over one line, so that it is in the pipe whatever happens next."""
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def questions() -> Questions:
    """Every peer has seen every tombstone."""
    return Questions(seen_by_all_peers=lambda entry: True)


def compact_for_ever(store: BlobStore, seed: int, lead: Lead) -> None:
    """One compaction after the other, of all segments or of some, and a hard delete now and then."""
    rng = random.Random(seed)
    store.questions = questions()
    store.resume(budget=Budget())
    while True:
        eligible = store.snapshot().eligible()
        if eligible:
            chosen = eligible[::rng.choice((1, 1, 2, 3))]
            tell("compacting")
            outcome = store.compact(plan_of(store, chosen, reference=store.clock.now()), budget=Budget())
            tell(f"compacted {outcome}" if isinstance(outcome, Failed) else "compacted")
        lead.lose(0)
        if rng.random() < 0.3:
            erased = store.hard_delete(budget=Budget())
            tell(f"hard deleted {erased}" if isinstance(erased, Failed) else "hard deleted")


def told_for_ever(store: BlobStore, seed: int, lead: Lead) -> None:
    """As `compact_for_ever`, and tells what ended it."""
    try:
        compact_for_ever(store, seed, lead)
    except BaseException as error:
        tell(f"compacted Failed(error={error!r})")
        lead.lose(1 << 30)
        raise


def live(store: BlobStore, seed: int, first: int, lead: Lead) -> None:
    """Put and delete for ever."""
    rng = random.Random(seed)
    number = first
    while True:
        if rng.random() < 0.55:
            number += 1
            lead.grow()
            tell(f"put? {number}")
            store.put(f"b{number}", content_of(number))
            tell(f"put {number}")
            if number > WINDOW:
                delete(store, number - WINDOW, lead)
        elif number:
            delete(store, rng.randint(max(1, number - WINDOW), number), lead)


def delete(store: BlobStore, number: int, lead: Lead) -> None:
    """Delete a blob unless it is gone."""
    lead.grow()
    tell(f"delete? {number}")
    with contextlib.suppress(BlobConflict, BlobMissing):
        store.delete(f"b{number}")
        tell(f"delete {number}")


def main(folder: str, seed: int, first: int) -> None:
    """Live until killed."""
    purge = seed % 2 == 1
    store = open_killed(folder, purge=purge)
    lead = Lead(MOST_AHEAD[purge])
    tell("opened")
    threading.Thread(target=told_for_ever, args=(store, seed, lead), daemon=True).start()
    live(store, seed, first, lead)


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
