# SPDX-License-Identifier: Apache-2.0
"""`Entries`: the scan that every store shares, over a function that loads one page.

A reader that wants one entry asks for a small first page; behind a run of deleted entries a small page would mean one
request for every few of them, so pages double.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Self, TypeAlias

import attrs

from compactlib._arguments import require_whole
from compactlib._closing import Closing
from compactlib.errors import Closed


@attrs.frozen
class KVEntry:
    """One key of a scan.

    Attributes:
        key: the key.
        value: its value.
        predicate: as that of `Versioned`.
    """

    key: bytes
    value: bytes
    predicate: object


PageLoader: TypeAlias = Callable[[bytes, int], tuple[Sequence[KVEntry], bool]]
"""`load(start, limit)`: the entries with a key >= `start`, at most `limit`, at least one if there is any; and whether
they are the partition's last. A page may be short, so that large values do not fill the memory."""

_KEY = attrgetter("key")


class Entries(Closing):
    """The entries of one partition, ascending by key byte by byte; for one thread at a time.

    Each page is one consistent read. Keys written or deleted while the scan goes on may be in it or not; all others
    are, once each. Close it, or use it in a `with`.

    Args:
        load: loads one page; may be asked for the same page again after it has raised.
        start: as given to `KVStore.scan`, and so the next three.
        prefix: the beginning that all keys have.
        after: the key behind which it begins.
        page_size: the most entries of the first page; `None`: of all.
        largest_page: the most entries of any page.

    Attributes:
        load: as given.
        page_loads: how many pages were loaded so far. Making the scan loads none.
    """

    def __init__(self, load: PageLoader, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
                 page_size: int | None = None, largest_page: int = 1000) -> None:
        require_whole("page_size", page_size, 1, or_none=True)
        self.load = load
        self.page_loads: int = 0
        self._prefix = bytes(prefix)
        self._largest_page = largest_page
        self._first_page = self._page_size = min(page_size or largest_page, largest_page)
        self._closed = False
        # The page at hand covers all keys from `_page_start` to its last one, or to the end if it is the last page.
        self._page: Sequence[KVEntry] = ()
        self._page_start: bytes | None = None
        self._is_last_page = False
        self._at = 0
        self._position = max(bytes(start), self._prefix, b"" if after is None else _successor(after))

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> KVEntry:
        """Return the next entry. After `StopIteration` a `seek` starts anew.

        Raises:
            Closed: the scan or the store was closed.
            CompactlibError: as `KVStore.get`; the same call may be made again and goes on where the last one ended.
        """
        self._require_open()
        if self._at >= len(self._page):
            if self._is_last_page:
                raise StopIteration
            self._load_page()
            if not self._page:
                raise StopIteration
        entry = self._page[self._at]
        if not entry.key.startswith(self._prefix):
            raise StopIteration
        self._at += 1
        return entry

    def seek(self, key: bytes) -> None:
        """Go on with the first key >= `key` (within the prefix), forwards or backwards.

        No page is loaded here, and none later if the place lies inside the page at hand.

        Raises:
            Closed: the scan was closed.
        """
        self._require_open()
        wanted = max(bytes(key), self._prefix)
        if self._covers(wanted):
            self._at = bisect_left(self._page, wanted, key=_KEY)
            return
        self._page, self._page_start, self._at, self._is_last_page = (), None, 0, False
        self._page_size = self._first_page
        self._position = wanted

    def close(self) -> None:
        """Forget the page at hand; closing again does nothing."""
        self._closed = True
        self._page = ()

    def __repr__(self) -> str:
        return f"Entries(prefix={self._prefix!r}, page_loads={self.page_loads}, closed={self._closed})"

    def _covers(self, key: bytes) -> bool:
        if self._page_start is None or key < self._page_start:
            return False
        return self._is_last_page or key <= self._page[-1].key

    def _load_page(self) -> None:
        start = self._position
        page, self._is_last_page = self.load(start, self._page_size)
        self.page_loads += 1
        self._page, self._page_start, self._at = page, start, 0
        self._position = _successor(page[-1].key) if page else start
        self._page_size = min(2 * self._page_size, self._largest_page)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the scan was closed; scan again")


def _successor(key: bytes) -> bytes:
    """Return the smallest key above `key`."""
    return key + b"\0"
