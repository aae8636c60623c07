# SPDX-License-Identifier: Apache-2.0
"""A cache of rendered pages on disk: it never refuses a page, keeps to its size, and frees space in the background.

    python examples/blob_cache.py FOLDER

Pages live for a while, are rendered again when they change, and are read with a skewed distribution. The store is full
most of the time; the pages that expire next make room.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig
from compactlib.manager import CompactionManager

CAPACITY_BYTES = 16 << 20


class PageCache:
    """Pages by name.

    Args:
        folder: where.
        render: makes a page that is not there; slow, which is why there is a cache.
        life_seconds: how long a page is good for.
    """

    def __init__(self, folder: Path, render: Callable[[str], bytes], life_seconds: float = 3600.0) -> None:
        self.store = BlobStore(folder, BlobStoreConfig.cache(CAPACITY_BYTES))
        self._manager = CompactionManager()
        self._manager.add("pages", self.store)
        self._manager.start()
        self._render = render
        self._life_seconds = life_seconds
        self.hits = self.misses = 0

    def get(self, name: str) -> bytes:
        """A page, rendered if it is not there."""
        found = self.store.get(name)
        if isinstance(found, Blob):
            self.hits += 1
            return found.content
        self.misses += 1
        page = self._render(name)
        self.store.put(name, page, ttl_seconds=self._life_seconds, replace=True)
        return page

    def changed(self, name: str) -> None:
        """The page is outdated."""
        if isinstance(self.store.get(name), Blob):
            self.store.delete(name)

    def close(self) -> None:
        """Cancel a running compaction; the next opening continues it."""
        self._manager.stop()
        self.store.close()


def main(folder: Path) -> None:
    """Ask for many more pages than fit."""
    rng = random.Random(1)
    cache = PageCache(folder, lambda name: rng.randbytes(rng.randrange(2_000, 20_000)))
    try:
        for _ in range(12_000):
            name = f"page {min(int(rng.paretovariate(0.35)), 100_000)}"
            if rng.random() < 0.02:
                cache.changed(name)
            cache.get(name)
        print(f"{cache.hits} hits, {cache.misses} misses")
        print(cache.store.status())
        print(cache.store.plan().why)
    finally:
        cache.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
