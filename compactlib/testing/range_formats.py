# SPDX-License-Identifier: Apache-2.0
"""The promises of every `RangeFormat` of the staging area, as a suite of `compactlib.testing.promises`.

Rows are compared with plain lists of records, and their ids with those of `PlainFormat`.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import accumulate
from typing import TypeAlias

from compactlib.errors import CorruptData
from compactlib.files import crc32
from compactlib.staging import ChangeBatch, PlainFormat, RangeFormat, Record, Rows
from compactlib.testing.promises import ConformanceKit, error_from, same

_Pairs: TypeAlias = list[tuple[bytes, Record]]


class RangeFormatConformance(ConformanceKit):
    """Inherit in a test class and override `make_format`; pytest finds the tests."""

    def make_format(self) -> RangeFormat:
        """Return the format to be tested."""
        raise NotImplementedError("override make_format to return a RangeFormat")

    def test_rows_agree_with_a_list(self) -> None:
        """Lengths, keys, records, sizes and places agree with a plain list, also of no rows.

        To do: compare with PlainFormat row by row; `find` is bisect_left over bytes. Guard the places that take the
        first or the last row.
        """
        own = self.make_format()
        for pairs in _samples():
            rows = own.rows(pairs)
            same(len(rows), len(pairs))
            same(_held(rows), pairs)
            same([(rows.key(place), rows.record(place)) for place in range(len(rows))], pairs)
            same(list(rows.ends()), list(accumulate(_logical_bytes(*pair) for pair in pairs)))
            same(rows.size_bytes, sum(_logical_bytes(*pair) for pair in pairs))
            keys = [key for key, _ in pairs]
            for key in [b"", *keys, *(key + b"\0" for key in keys), b"\xff" * 9]:
                same(rows.find(key), bisect_left(keys, key), case=key)
            same(rows.cut_keys(3), [key for key in keys if crc32(key) % 3 == 0])

    def test_parts_and_whole_have_the_id_of_their_rows(self) -> None:
        """Cut and joined rows have the id of equal rows: an id depends on the keys and records alone.

        To do: count sizes from the beginning of the part. Hash the rows' pairs with content_id; the id depends neither
        on the file's layout nor on how the rows were made.
        """
        rng, own, ids = random.Random(2), self.make_format(), set()
        for pairs in _samples():
            rows = own.rows(pairs)
            ids.add(rows.content_id())
            for cut in (0, len(pairs), *(rng.randint(0, len(pairs)) for _ in range(5))):
                first, second = rows.part(0, cut), rows.part(cut, len(rows))
                for part, held in ((first, pairs[:cut]), (second, pairs[cut:]), (first.followed_by(second), pairs)):
                    same(_held(part), held)
                    same(part.size_bytes, sum(_logical_bytes(*pair) for pair in held))
                    plain = PlainFormat().rows(held)
                    same(part.content_id(), plain.content_id(), case=f"{len(pairs)} rows, cut before row {cut}")
        same(len(ids), len(_samples()))

    def test_merge_agrees_with_a_dictionary(self) -> None:
        """A merge applies puts, deletes, and puts of an unchanged identity.

        To do: a put of the same identity changes nothing; a delete of an absent key counts nothing; the source rows
        are unchanged.
        """
        rng, own = random.Random(3), self.make_format()
        for count in (0, 1, 5, 60, 300) * 8:
            pairs = _random_pairs(rng, count)
            changes = _changes_to(rng, pairs)
            before, after = dict(pairs), dict(pairs)
            for key, change in changes.items():
                if change is None:
                    after.pop(key, None)
                elif key not in before or before[key].identity != change.identity:
                    after[key] = change
            rows = own.rows(pairs)
            merged = rows.merged(ChangeBatch.of(sorted(changes.items())))
            same(_held(merged.rows), sorted(after.items()))
            changed = [key for key in before.keys() & after.keys() if before[key] != after[key]]
            same((merged.added, merged.changed, merged.removed),
                 (len(after.keys() - before.keys()), len(changed), len(before.keys() - after.keys())))
            same(_held(rows), pairs)

    def test_file_gives_back_its_rows(self) -> None:
        """Rows of this format and of another are read as they were written; another range's file is `CorruptData`.

        To do: encode any Rows, not only your own class. Check the id of the decoded rows against the given id, and
        raise CorruptData with the path.
        """
        own = self.make_format()
        other = own.rows(_random_pairs(random.Random(5), 3)).content_id()
        for pairs in _samples()[1:]:
            rows = own.rows(pairs)
            for given in (rows, PlainFormat().rows(pairs)):
                data = own.encode(given, rows.content_id())
                assert own.recognizes(data), f"the format does not recognize a file of its own: {data[:40]!r}..."
                same(_held(own.decode(data, rows.content_id(), "a/path")), pairs)
            same(error_from(CorruptData, own.decode, data, other, "a/path").path, "a/path")

    def test_damage_is_detected_or_harmless(self) -> None:
        """A file with any cut or any flipped bit is `CorruptData` with the path, or gives the same rows.

        To do: checksum the whole file, headers too, and turn every error of the parser into CorruptData.
        """
        own, rng = self.make_format(), random.Random(4)
        pairs = _random_pairs(rng, 12)
        rows = own.rows(pairs)
        range_id, data = rows.content_id(), own.encode(rows, rows.content_id())
        damaged = [data[:length] for length in range(0, len(data), 5)] + [data + b"\0", b"\0" + data]
        damaged += [data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1:]
                    for place in range(len(data))]
        for each in damaged:
            try:
                found = own.decode(each, range_id, "a/path")
            except CorruptData as error:
                same(error.path, "a/path")
            else:
                same(_held(found), pairs)


def _samples() -> list[_Pairs]:
    rng = random.Random(1)
    odd = [(b"\0", Record(b"", b"")), (b"\0\0", Record(b"\0", b"")), (b"\xff", Record(b"", b"\xff" * 100_000)),
           (b"\xff\xff", Record(b"i", b"d"))]
    return [[], odd[:1], odd, *(_random_pairs(rng, count) for count in (2, 10, 300))]


def _random_pairs(rng: random.Random, count: int) -> _Pairs:
    keys = sorted({rng.randbytes(rng.randint(1, 6)) for _ in range(count)})
    return [(key, Record(rng.randbytes(rng.choice([0, 1, 20])), rng.randbytes(rng.choice([0, 1, 50])))) for key in keys]


def _changes_to(rng: random.Random, pairs: _Pairs) -> dict[bytes, Record | None]:
    """Draw changes of every kind: puts and tombstones of new and known keys, and puts of an unchanged identity."""
    changes: dict[bytes, Record | None] = {key: rng.choice([None, record]) for key, record in _random_pairs(rng, 20)}
    for key, record in pairs:
        kind = rng.randrange(6)
        if kind < 3:
            changes[key] = (None, Record(record.identity, b"other data"), Record(b"another", b"new"))[kind]
    return changes


def _logical_bytes(key: bytes, record: Record) -> int:
    """Return the bytes of a row: 12, and the key, the identity and the data."""
    return 12 + len(key) + len(record.identity) + len(record.data)


def _held(rows: Rows) -> _Pairs:
    return list(rows.pairs(0))
