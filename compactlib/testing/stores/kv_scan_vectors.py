"""The K-vectors of scans, K14 to K26 of `notes/staging.md` 3.1, each named by its number.

Two of them are stated in Python's terms: after `close()` a scan raises `ClosedEntries` (K24), and the end of a scan is
`StopIteration` (K23).
"""

from __future__ import annotations

import random
from pathlib import Path

from compactlib.kv import ClosedEntries
from compactlib.testing.kit.conformance import expect, same
from compactlib.testing.stores.kv_vectors import OTHER, KVVectors, P, keys_of, put_all


class KVScanVectors(KVVectors):
    """K1 to K27: those of scans here, the others inherited."""

    def test_k14_a_scan_stays_in_its_partition(self, tmp_path: Path) -> None:
        """The same hundred keys in two partitions, written in any order.

        To do: bound a scan by its partition at both ends, also when it loads the next page.
        """
        store = self.make_store(tmp_path)
        keys = [b"pfx-key-%04d" % number for number in range(100)]
        put_all(store, random.Random(14).sample(keys, 100))
        put_all(store, keys, OTHER)
        store.set(OTHER, keys[50], b"foreign")
        same(keys_of(store, start=b"pfx"), keys)
        store.close()

    def test_k15_where_a_scan_begins(self, tmp_path: Path) -> None:
        """At the first key at or after the start.

        To do: the start is inclusive; `after` is exclusive.
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"pfx-key-%04d" % number for number in range(100)])
        found = keys_of(store, start=b"pfx-key-0005")
        same((len(found), found[0]), (95, b"pfx-key-0005"))
        same(keys_of(store, start=b"pfx-key-0005a")[0], b"pfx-key-0006")
        store.close()

    def test_k16_nothing_to_scan(self, tmp_path: Path) -> None:
        """An unknown partition, and a start past the end.

        To do: an empty page ends a scan; it is no error.
        """
        store = self.make_store(tmp_path)
        same(keys_of(store, b"no such partition"), [])
        put_all(store, [b"a", b"b"])
        same(keys_of(store, start=b"c"), [])
        store.close()

    def test_k17_the_order_of_keys(self, tmp_path: Path) -> None:
        """Byte by byte, the shorter first; no text collation.

        To do: order by bytes: a binary collation, bytea, BLOB; text columns and locales sort differently.
        """
        store = self.make_store(tmp_path)
        keys = [bytes.fromhex(text) for text in ("00", "00ff", "61", "6100", "6161", "ff", "ffff")]
        put_all(store, random.Random(17).sample(keys, len(keys)))
        same(keys_of(store), keys)
        store.close()

    def test_k19_pages_of_any_size(self, tmp_path: Path) -> None:
        """The size is a hint about how, not what; fewer are asked for first, then twice as many each time.

        To do: take page_size as a first guess; give all entries, and let pages grow
        (`compactlib.kv.parts.entries.PagedEntries` does).
        """
        store = self.make_store(tmp_path, page_size=1000)
        keys = [b"%04d" % number for number in range(100)]
        put_all(store, keys)
        for size in (1, 2, 99, 100, 1000):
            same(keys_of(store, page_size=size), keys)
        with store.scan(P, page_size=1) as entries:
            same(list(entries)[-1].key, keys[-1])
            # 1, 2, 4, ... 64 entries: a hint of one does not mean a hundred requests.
            assert entries.page_loads <= 8, f"{entries.page_loads} pages for 100 entries: pages do not grow"
        store.close()

    def test_k20_deleting_during_a_scan(self, tmp_path: Path) -> None:
        """The last key goes while the scan is open; it may be seen or not, the others are.

        To do: ask for the next page by `key > last`, not by an offset: a deletion would shift it over an entry.
        """
        for size in (99, 95):
            store = self.make_store(tmp_path / str(size))
            keys = [b"%04d" % number for number in range(100)]
            put_all(store, keys)
            with store.scan(P, page_size=size) as entries:
                found = [next(entries).key]
                store.delete(P, keys[99])
                found += [entry.key for entry in entries]
            assert found in (keys, keys[:99]), found
            store.close()

    def test_k23_seek(self, tmp_path: Path) -> None:
        """Forwards, backwards and past the end; inside a page nothing is loaded.

        To do: a seek goes to the first key at or after the one asked for, either way; within the page in hand
        ask for nothing.
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"a", b"aa", b"b", b"c", b"d"])
        with store.scan(P) as entries:
            for wanted, found in ((b"b", [b"b", b"c", b"d"]), (b"aaa", [b"b", b"c", b"d"]), (b"e", []),
                                  (b"a", [b"a", b"aa", b"b", b"c", b"d"])):
                entries.seek(wanted)
                same([entry.key for entry in entries], found, case=wanted)
        with store.scan(P) as entries:
            for key in (b"b", b"c", b"d"):
                entries.seek(key)
                same(next(entries).key, key)
            assert entries.page_loads == 1, f"seeks inside one page loaded {entries.page_loads}"
        store.close()

    def test_k24_a_closed_scan(self, tmp_path: Path) -> None:
        """It says so; closing again is fine.

        To do: remember that the scan was closed, and raise ClosedEntries from every call but close().
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"a", b"b"])
        entries = store.scan(P)
        same(next(entries).key, b"a")
        entries.close()
        entries.close()
        with expect(ClosedEntries):
            next(entries)
        with expect(ClosedEntries):
            entries.seek(b"a")
        store.close()

    def test_k25_prefix(self, tmp_path: Path) -> None:
        """With where to begin: at a key, or after it.

        To do: a prefix, a start and an `after` all hold at once: begin at the highest of them, end with the
        prefix.
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"a", b"aa", b"b"])
        same(keys_of(store, prefix=b"a"), [b"a", b"aa"])
        same(keys_of(store, prefix=b"a", start=b"aa"), [b"aa"])
        same(keys_of(store, prefix=b"a", after=b"aa"), [])
        store.close()

    def test_k26_seek_across_pages(self, tmp_path: Path) -> None:
        """Into pages that are not loaded yet, and back into one that is gone.

        To do: after a seek behind the page in hand begin a new page at the key; before it, load anew.
        """
        store = self.make_store(tmp_path, page_size=10)
        tail = [b"d" + bytes([letter]) for letter in range(ord("a"), ord("z") + 1)]
        keys = [b"a", b"aa", b"b", b"c", b"d", *tail, b"z"]
        put_all(store, keys)
        with store.scan(P, page_size=10) as entries:
            same(next(entries).key, b"a")
            entries.seek(b"b")
            same([next(entries).key for _ in range(11)], keys[2:13])
            entries.seek(b"z")
            same(next(entries).key, b"z")
            entries.seek(b"d1")
            same([entry.key for entry in entries], [*tail, b"z"])
        store.close()
