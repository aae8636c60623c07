# SPDX-License-Identifier: Apache-2.0
"""`Entries`: the scan of all stores, over a function that loads a page.

A reader of one entry sets a small first page. Later pages double, so that a reader who skips many entries does not
send a request for every few of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Self, TypeAlias

import attrs

from compactlib._arguments import own_bytes, require_whole
from compactlib._closing import Closing
from compactlib.errors import Closed, CorruptData


@attrs.frozen
class KVEntry:
    """A key of a partition, its value, and its state.

    Attributes:
        key: the key.
        value: its value.
        predicate: a condition for `set_if` and `transact`: it fails after any write or delete of the key. In a store
            that compares values, it holds again when the same bytes are written again (ABA).
        damage: the error of a damaged value, which is `b""`; raised by each call that returns the value.
    """

    key: bytes
    value: bytes
    predicate: object
    damage: CorruptData | None = None


PageLoader: TypeAlias = Callable[[bytes, int], tuple[Sequence[KVEntry], bool]]
"""`load(start, limit)` returns a page; see `KVStore._page`. It is called again for the same page after an exception."""

_KEY = attrgetter("key")


class Entries(Closing):
    """The entries of a partition in ascending order of their keys; for one thread at a time.

    Each page is one consistent read. The scan has all keys once, except that keys written or deleted during the scan
    may be missing. Close it, or use it in a `with`.

    Attributes:
        load: loads a page.
        page_loads: the number of pages loaded so far.
    """

    def __init__(self, load: PageLoader, start: bytes = b"", *, prefix: bytes = b"",
                 page_size: int | None = None, largest_page: int = 1000, keys_only: bool = False) -> None:
        page_size = require_whole("page_size", page_size, 1, or_none=True)
        self.load = load
        self.page_loads: int = 0
        self._prefix = own_bytes(prefix)
        self._largest_page = largest_page
        self._keys_only = keys_only
        self._first_page = self._page_size = min(page_size or largest_page, largest_page)
        self._closed = False
        # Invariant: the page has all keys from `_page_start` to its last key; the last page, all keys from there on.
        self._page: Sequence[KVEntry] = ()
        self._page_start: bytes | None = None
        self._is_last_page = False
        self._at = 0
        self._position = max(own_bytes(start), self._prefix)

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> KVEntry:
        """Return the next entry. After `StopIteration`, `seek` restarts the scan.

        Raises:
            Closed: the scan or the store was closed.
            CorruptData: the value of the next entry is damaged.
            CompactlibError: as `KVStore.get`; a retry continues after the last entry.
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
        if entry.damage is not None and not self._keys_only:
            raise entry.damage
        self._at += 1
        return entry

    def seek(self, key: bytes) -> None:
        """Move to the first key >= `key` with the prefix, forwards or backwards.

        Loads no page; the next entry loads one if the key is outside of the present page.

        Raises:
            Closed: the scan was closed.
        """
        self._require_open()
        wanted = max(own_bytes(key), self._prefix)
        page, start = self._page, self._page_start
        if start is not None and start <= wanted and (self._is_last_page or wanted <= page[-1].key):
            self._at = bisect_left(page, wanted, key=_KEY)
            return
        self._page, self._page_start, self._at, self._is_last_page = (), None, 0, False
        self._page_size = self._first_page
        self._position = wanted

    def close(self) -> None:
        """Drop the present page; closing again does nothing."""
        self._closed = True
        self._page = ()

    def __repr__(self) -> str:
        return f"Entries(prefix={self._prefix!r}, page_loads={self.page_loads}, closed={self._closed})"

    def _load_page(self) -> None:
        start = self._position
        page, is_last_page = self.load(start, self._page_size)
        position = page[-1].key + b"\0" if page else start
        page_size = min(2 * self._page_size, self._largest_page)
        # Without a call in between, so that an interrupt comes before all of it, or after.
        self.page_loads += 1
        self._page, self._page_start, self._at, self._is_last_page = page, start, 0, is_last_page
        self._position, self._page_size = position, page_size

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the scan was closed; scan again")
