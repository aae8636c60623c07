# SPDX-License-Identifier: Apache-2.0
"""What every `RangeFormat` of the staging area has to do, as tests that any implementation can inherit.

    from compactlib.testing.stores.range_format_conformance import RangeFormatConformance

    class TestMyFormat(RangeFormatConformance):
        def make_format(self) -> RangeFormat:
            return MyFormat(...)

pytest collects the inherited methods; without pytest, `check_range_format` runs them one after the other. Ours are
compared with plain lists of records, and their ids with those of `PlainFormat`.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import accumulate

from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.staging.committed.formats.plain_format import PlainFormat
from compactlib.staging.committed.formats.rows import ChangeBatch, RangeFormat, Rows
from compactlib.staging.committed.formats.split import record_bytes
from compactlib.staging.model.values import Change, RangeId, Record
from compactlib.testing.kit.fresh import drawing
from compactlib.testing.promises import ConformanceKit, Mismatch, run_kit, same

_Pairs = list[tuple[bytes, Record]]


def _random_pairs(rng: random.Random, count: int) -> _Pairs:
    keys = sorted({rng.randbytes(rng.randint(1, 6)) for _ in range(count)})
    return [(key, Record(rng.randbytes(rng.choice([0, 1, 20])), rng.randbytes(rng.choice([0, 1, 50])))) for key in keys]


def _samples() -> list[_Pairs]:
    rng = drawing(1)
    odd = [(b"\0", Record(b"", b"")), (b"\0\0", Record(b"\0", b"")), (b"\xff", Record(b"", b"\xff" * 100_000)),
           (b"\xff\xff", Record(b"i", b"d"))]
    return [odd[:1], odd, *(_random_pairs(rng, count) for count in (2, 10, 300))]


def _held(rows: Rows) -> _Pairs:
    return list(rows.pairs(0))


class RangeFormatConformance(ConformanceKit):
    """Inherit in a test class, say how to make the format, and pytest finds the rest."""

    def make_format(self) -> RangeFormat:
        """The format to be tested."""
        raise NotImplementedError("say which format is to be tested")

    def test_rows_say_what_they_hold(self) -> None:
        """Lengths, keys, records, sizes and places agree with a plain list.

        To do: compare with PlainFormat row by row; `find` is bisect_left over bytes.
        """
        for pairs in _samples():
            rows = self.make_format().rows(pairs)
            same(len(rows), len(pairs))
            same(_held(rows), pairs)
            same([(rows.key(place), rows.record(place)) for place in range(len(rows))], pairs)
            same(list(rows.ends()), list(accumulate(record_bytes(*pair) for pair in pairs)))
            same(rows.size_bytes, rows.ends()[-1])
            keys = [key for key, _ in pairs]
            for key in [b"", *keys, *(key + b"\0" for key in keys), b"\xff" * 9]:
                same(rows.find(key), bisect_left(keys, key))
            same(rows.cut_keys(3), [key for key in keys if crc32(key) % 3 == 0])

    def test_no_rows_are_rows_too(self) -> None:
        """Empty rows can be asked everything.

        To do: guard the places that take the first or the last row.
        """
        empty = self.make_format().empty
        same((len(empty), empty.size_bytes, _held(empty), list(empty.ends())), (0, 0, [], []))
        same((empty.find(b"a"), empty.cut_keys(1)), (0, []))
        same(empty.content_id(), PlainFormat().empty.content_id())
        same(_held(empty.followed_by(empty)), [])

    def test_parts_join_to_the_whole_and_have_its_id(self) -> None:
        """A range is cut and joined without reading it anew.

        To do: sizes are counted from the part's own begin; ids depend on the rows alone, not on how they were
        made.
        """
        rng = drawing(2)
        for pairs in _samples():
            rows = self.make_format().rows(pairs)
            for _ in range(5):
                cut = rng.randint(0, len(pairs))
                first, second = rows.part(0, cut), rows.part(cut, len(rows))
                same((_held(first), _held(second)), (pairs[:cut], pairs[cut:]))
                joined = first.followed_by(second)
                same(_held(joined), pairs)
                same(joined.content_id(), rows.content_id())
                same(second.size_bytes, sum(record_bytes(*pair) for pair in pairs[cut:]))

    def test_ids_are_those_of_every_format(self) -> None:
        """The id depends on the keys and records alone.

        To do: hash with content_id of the rows' own pairs; your file's layout must not show.
        """
        ids = set()
        for pairs in _samples():
            rows = self.make_format().rows(pairs)
            same(rows.content_id(), PlainFormat().rows(pairs).content_id())
            ids.add(rows.content_id())
            for start in range(min(len(pairs), 5)):
                part = rows.part(start, len(rows))
                same(part.content_id(), PlainFormat().rows(pairs[start:]).content_id())
        same(len(ids), len(_samples()))

    def test_merging_is_what_dictionaries_say(self) -> None:
        """Puts, deletes, and puts of an identity that is there already.

        To do: a put of the same identity changes nothing; a delete of what is absent counts nothing; the rows
        merged from stay.
        """
        rng = drawing(3)
        for count in (0, 1, 5, 60, 300):
            for _ in range(8):
                pairs = _random_pairs(rng, count)
                self._check_merge(pairs, _changes_to(rng, pairs))

    def _check_merge(self, pairs: _Pairs, changes: dict[bytes, Change]) -> None:
        before, after = dict(pairs), dict(pairs)
        for key, change in changes.items():
            if change is None:
                after.pop(key, None)
            elif key not in before or before[key].identity != change.identity:
                after[key] = change
        own = self.make_format()
        rows = own.rows(pairs) if pairs else own.empty
        merged = rows.merged(ChangeBatch.of(sorted(changes.items())))
        same(_held(merged.rows), sorted(after.items()))
        added, removed = after.keys() - before.keys(), before.keys() - after.keys()
        changed = [key for key in before.keys() & after.keys() if before[key].identity != after[key].identity]
        same((merged.added, merged.changed, merged.removed), (len(added), len(changed), len(removed)))
        same(_held(rows), pairs)

    def test_a_file_gives_back_its_rows(self) -> None:
        """Of its own rows and of those of another format.

        To do: encode whatever Rows you are given, not only your own class.
        """
        own = self.make_format()
        for pairs in _samples():
            rows = own.rows(pairs)
            for given in (rows, PlainFormat().rows(pairs)):
                data = own.encode(given, rows.content_id())
                assert own.recognizes(data)
                same(_held(own.decode(data, rows.content_id(), "a/path")), pairs)

    def test_a_file_of_another_range_is_found_out(self) -> None:
        """The id that is asked for is compared.

        To do: check the id of what was decoded against the one asked for, and raise CorruptData with the path.
        """
        own = self.make_format()
        rows, other = (own.rows(pairs) for pairs in _samples()[:2])
        data = own.encode(rows, rows.content_id())
        self._must_fail(own, data, other.content_id())

    def test_every_damage_is_found_out_or_harmless(self) -> None:
        """Any cut, any bit: CorruptData with the path, or the same rows.

        To do: checksum the whole file, headers too, and turn every error of the parser into CorruptData.
        """
        own, rng = self.make_format(), drawing(4)
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

    def _must_fail(self, own: RangeFormat, data: bytes, range_id: RangeId) -> None:
        try:
            own.decode(data, range_id, "a/path")
        except CorruptData as error:
            same(error.path, "a/path")
        else:
            raise Mismatch("nothing was raised", "CorruptData")


def _changes_to(rng: random.Random, pairs: _Pairs) -> dict[bytes, Change]:
    """Changes of every kind: new keys, known ones, tombstones of both, and puts of an identity that is there."""
    changes: dict[bytes, Change] = {key: rng.choice([None, record]) for key, record in _random_pairs(rng, 20)}
    for key, record in pairs:
        kind = rng.randrange(6)
        if kind < 3:
            changes[key] = (None, Record(record.identity, b"other data"), Record(b"another", b"new"))[kind]
    return changes


def check_range_format(range_format: RangeFormat) -> list[str]:
    """Run every test of the kit on a format; gives their names.

    Raises:
        AssertionError: the format does not do what a test demands; the message says what.
    """
    suite = RangeFormatConformance()
    suite.make_format = lambda: range_format  # type: ignore[method-assign]
    return run_kit(suite)
