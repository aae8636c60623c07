# SPDX-License-Identifier: Apache-2.0
"""Pages of listings and diffs: their first and last keys, and the entries they read."""

from __future__ import annotations

from typing import cast

from compactlib.staging import (
    StagingOptions,
)
from tests.harness.staging_world import StagingWorld as World, diff


def test_a_page_begins_where_the_last_one_ended() -> None:
    main = World().branch({f"k{number}": "x" for number in range(7)}, staged={"k3": None, "k33": "y"})
    pages = []
    after: bytes | None = None
    while True:
        page = main.list(limit=2, after=after)
        pages.append(page.keys)
        after = page.next_after
        if after is None:
            break
    assert pages == [(b"k0", b"k1"), (b"k2", b"k33"), (b"k4", b"k5"), (b"k6",)]


def test_a_page_counts_its_staged_and_committed_entries() -> None:
    main = World().branch({f"k{number}": "x" for number in range(7)}, staged={"k3": None, "k33": "y"})
    assert main.list().scanned == 9


def test_a_page_reads_a_bounded_number_of_entries() -> None:
    """100 tombstones before one key, 10 reads a page: some pages are empty, and no page is long."""
    world = World(options=StagingOptions(max_scanned=10))
    main = world.branch({}, staged={f"a{number:03}": None for number in range(100)} | {"z": "1"})
    pages, after = [], cast("bytes | None", None)
    while True:
        page = main.list(after=after, limit=5)
        assert page.scanned <= 12
        pages.append(page)
        after = page.next_after
        if after is None:
            break
    assert [entry.key for page in pages for entry in page.entries] == [b"z"]
    assert len(pages) > 5
    assert sum(page.tombstones for page in pages) == 100
    assert list(main.differences()) == list(World.branch(world, {}, name="same", staged={"z": "1"}).differences())


def test_a_diff_reads_a_bounded_number_of_keys() -> None:
    world = World(options=StagingOptions(max_scanned=10))
    main = world.branch({}, staged={f"a{number:03}": None for number in range(35)})
    page = main.diff()
    assert (page.differences, page.scanned, page.next_after) == ((), 10, b"a009")
    assert diff(main) == []


def test_pages_of_a_diff_over_a_compaction() -> None:
    main = World().branch({"a": "1", "b": "2", "c": "3"}, compacted={"a": "9", "c": "3", "d": "4", "e": "5"},
                          staged={"c": None, "d": None})
    for _ in range(2):
        pages, after = [], cast("bytes | None", None)
        while True:
            page = main.diff(limit=1, after=after)
            pages += [difference.key for difference in page.differences]
            after = page.next_after
            if after is None:
                break
        assert pages == [b"a", b"b", b"c", b"e"]
        assert [difference.key for difference in main.diff(prefix=b"e").differences] == [b"e"]


def test_common_prefixes_are_passed_over_by_seeking() -> None:
    main = World().branch({f"{folder}/{number:03}": "x" for folder in "abc" for number in range(200)} | {"d": "y"},
                          staged={"b/new": "1"})
    page = main.list(delimiter=b"/")
    assert page.keys == (b"a/", b"b/", b"c/", b"d")
    assert page.scanned < 20
    again = main.list(delimiter=b"/", after=b"b/")
    assert again.keys == (b"c/", b"d")
    inside = main.list(delimiter=b"/", after=b"b/100", limit=1)
    assert inside.keys == (b"b/",)


def test_a_page_does_not_end_inside_a_deleted_common_prefix() -> None:
    """It said that the next one begins behind the prefix, and so the prefix was listed nowhere."""
    world = World(options=StagingOptions(max_scanned=1))
    main = world.branch({"a/": "", "a/1": "1", "b": "2", "c/": "", "d": "3"}, staged={"a/": None, "c/": None})
    assert [one.key for one in main.entries(delimiter=b"/")] == [b"a/", b"b", b"d"]
    assert [one.key for one in main.entries()] == [b"a/1", b"b", b"d"]


def test_listing_keys_of_0xff_with_a_delimiter_of_0xff() -> None:
    main = World().branch({}, staged={"a": "1"})
    main.put(b"\xff\xff", b"1")
    main.put(b"\xff\xffz", b"2")
    assert main.list(delimiter=b"\xff").keys == (b"a", b"\xff")
    assert main.list(delimiter=b"\xff", after=b"\xff").keys == ()
    assert main.head().list(delimiter=b"\xff", after=b"\xff").keys == ()
