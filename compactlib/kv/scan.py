# SPDX-License-Identifier: Apache-2.0
"""`PagedEntries`: the scan that every backend shares, over a function that loads one page.

A reader that wants one entry asks for a small first page; behind a run of deleted entries a small page would mean one
request for every few of them, so pages double.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

import attrs

from compactlib._closing import Closing
from compactlib.errors import InvalidInput
from compactlib.kv.errors import ClosedEntries

if TYPE_CHECKING:
    from typing_extensions import Buffer


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


class Entries(Protocol):
    """The entries of one partition, ascending by key byte by byte; for one thread at a time.

    Each page is one consistent read. Keys written or deleted while the scan goes on may be in it or not; all others
    are, once each. Close it, or use it in a `with`.
    """

    @property
    def page_loads(self) -> int:
        """How many times the store was asked so far. Making the scan asks nothing."""

    def __iter__(self) -> Self:
        """Itself."""

    def __next__(self) -> KVEntry:
        """The next entry. After `StopIteration` a `seek` starts anew.

        Raises:
            ClosedEntries: the scan was closed.
            CompactlibError: as `KVStore.get`; the same call may be made again and goes on where the last one ended.
        """

    def seek(self, key: bytes) -> None:
        """Go on with the first key >= `key` (within the prefix), forwards or backwards.

        No page is loaded here, and none later if the place lies inside the page at hand.

        Raises:
            ClosedEntries: the scan was closed.
        """

    def close(self) -> None:
        """Give up what the scan holds; closing again does nothing."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *_: object) -> None:
        """Close."""


PageLoader: TypeAlias = Callable[[bytes, int], tuple[Sequence[KVEntry], bool]]
"""`load(start, limit)`: the entries with a key >= `start`, at most `limit`, at least one if there is any; and whether
they are the partition's last. A page may be short, so that large values do not fill the memory."""

_KEY = attrgetter("key")


class PagedEntries(Closing):
    """The entries of one scan; see `Entries`.

    Args:
        load: loads one page; may be asked for the same page again after it has raised.
        start: as given to `KVStore.scan`, and so the next three.
        prefix: the beginning that all keys have.
        after: the key behind which it begins.
        page_size: the most entries of a page; `None`: the store decides.
        largest_page: the store's own page size, in entries.
    """

    def __init__(self, load: PageLoader, start: bytes, *, prefix: bytes, after: bytes | None, page_size: int | None,
                 largest_page: int) -> None:
        self._load = load
        self._prefix = own_bytes(prefix)
        self._largest_page = largest_page
        self._first_page = _first_page(page_size, largest_page)
        self._page_size = self._first_page
        self._page_loads = 0
        self._closed = False
        # The page at hand covers all keys from `_page_start` to its last one, or to the end if it is the last page.
        self._page: Sequence[KVEntry] = ()
        self._page_start: bytes | None = None
        self._is_last_page = False
        self._at = 0
        self._position = max(own_bytes(start), self._prefix)
        if after is not None:
            self._position = max(self._position, _successor(own_bytes(after)))

    @property
    def page_loads(self) -> int:
        """How many pages were loaded so far."""
        return self._page_loads

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> KVEntry:
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
        """Go on with the first key >= `key`; see `Entries.seek`."""
        self._require_open()
        wanted = max(own_bytes(key), self._prefix)
        if self._covers(wanted):
            self._at = bisect_left(self._page, wanted, key=_KEY)
            return
        self._page, self._page_start, self._at, self._is_last_page = (), None, 0, False
        self._page_size = self._first_page
        self._position = wanted

    def close(self) -> None:
        """Forget the page at hand; see `Entries.close`."""
        self._closed = True
        self._page = ()

    def __repr__(self) -> str:
        return f"PagedEntries(prefix={self._prefix!r}, page_loads={self._page_loads}, closed={self._closed})"

    def _covers(self, key: bytes) -> bool:
        if self._page_start is None or key < self._page_start:
            return False
        return self._is_last_page or key <= self._page[-1].key

    def _load_page(self) -> None:
        start = self._position
        page, is_last_page = self._load(start, self._page_size)
        following = _successor(page[-1].key) if page else start
        next_size = min(2 * self._page_size, self._largest_page)
        # All of it without a call: an interrupt comes before, or after.
        self._page_loads += 1
        self._page, self._page_start, self._at, self._is_last_page = page, start, 0, is_last_page
        self._position, self._page_size = following, next_size

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedEntries("the scan was closed; scan again")


def _successor(key: bytes) -> bytes:
    """The smallest key above `key`."""
    return key + b"\0"


def own_bytes(value: Buffer) -> bytes:
    """Return a buffer's bytes, which its owner cannot change any more.

    Raises:
        TypeError: it is no buffer of bytes.
    """
    return value if type(value) is bytes else memoryview(value).tobytes()


def _first_page(page_size: int | None, largest: int) -> int:
    if page_size is None:
        return largest
    if page_size < 1:
        raise InvalidInput(f"a page of {page_size!r} entries was asked for; give at least 1")
    return min(page_size, largest)
