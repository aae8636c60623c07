# SPDX-License-Identifier: Apache-2.0
"""The range formats are promises: files of an earlier release are read as they were meant, and named as they were.

`python -m tests.promises.staging.test_committed_golden` writes the golden files; a change in one of them is a new
format version, or a mistake. What Parquet's own writer makes of a range may differ from release to release; its id may
not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from compactlib.objects import MemoryObjects
from compactlib.staging import CommittedRanges, ParquetFormat, PlainFormat, Record, SplitRule

GOLDEN = Path(__file__).parents[1] / "golden" / "staging"
FORMATS_PAGES = Path(__file__).parents[3] / "docs" / "formats"

RULE = SplitRule(min_bytes=40, max_bytes=4000, raggedness=3)
CONTENT = {
    b"\0": Record(b"", b""), b"a/1": Record.of(b"one"), b"a/2": Record(b"identity", b"two"),
    b"b": Record(b"\xff" * 20, bytes(range(256))), b"c": Record.of(b"c"), b"d": Record.of(b"d"),
    b"\xff": Record(b"i", b""), b"\xff\xff": Record.of(b"last"),
}
METARANGE = "8e34d68f675d3ddb8cdcc65f3b9dee6f14379a14"
RANGE = "b8fd0f9aa925cc32e7f123605eada4589833ba50"
FIRST = slice(0, 3)


def stored(range_format: PlainFormat | ParquetFormat) -> tuple[CommittedRanges, MemoryObjects, Any]:
    objects = MemoryObjects()
    layer = CommittedRanges(objects, rule=RULE, range_format=range_format, cache_bytes=0)
    return layer, objects, layer.apply(None, sorted(CONTENT.items())).metarange_id


def golden_files() -> dict[str, bytes]:
    """The files of the content above, by their golden names: the metarange, and its first range in each format."""
    layer, objects, base = stored(PlainFormat())
    files = {"staging-metarange-v1.bin": objects.get(f"metaranges/{base}")}
    formats: list[PlainFormat | ParquetFormat] = [PlainFormat()]
    if importlib.util.find_spec("pyarrow"):
        formats.append(ParquetFormat(rows_per_group=4))
    for range_format in formats:
        layer, objects, base = stored(range_format)
        files[f"staging-range-{range_format.name}-v1.bin"] = objects.get(
            f"ranges/{layer.ranges_of(base)[0].range_id}")
    return files


def test_the_ids_match_the_golden_ids() -> None:
    layer, _, base = stored(PlainFormat())
    assert base == METARANGE
    first = layer.ranges_of(base)[0]
    keys = sorted(CONTENT)[FIRST]
    size = sum(12 + len(key) + len(CONTENT[key].identity) + len(CONTENT[key].data) for key in keys)
    assert (first.range_id, first.min_key, first.max_key, first.count, first.size_bytes) == (
        RANGE, keys[0], keys[-1], len(keys), size)


@pytest.mark.parametrize("name", ["staging-metarange-v1.bin", "staging-range-plain-v1.bin"])
def test_the_same_bytes_are_written_today(name: str) -> None:
    assert golden_files()[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", ["plain", "parquet"])
def test_files_of_the_first_release_are_read(name: str) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    layer, objects, base = stored(PlainFormat())
    for path, golden in ((f"metaranges/{base}", "staging-metarange-v1.bin"),
                         (f"ranges/{RANGE}", f"staging-range-{name}-v1.bin")):
        objects.delete([path])
        objects.create(path, (GOLDEN / golden).read_bytes())
    assert dict(layer.scan(base)) == CONTENT


def test_the_range_page_is_enough_to_read_a_plain_range() -> None:
    """A reader of its own, by the page alone."""
    data = (GOLDEN / "staging-range-plain-v1.bin").read_bytes()
    magic, version, zero, checksum = struct.unpack_from("<6sHII", data)
    assert (magic, version, zero, checksum) == (b"CLRANG", 1, 0, zlib.crc32(data[:12]))
    assert hashlib.blake2b(data[16:], digest_size=20, person=b"compactlib.range").hexdigest() == RANGE
    count, = struct.unpack_from("<Q", data, 16)
    at, columns = 24, []
    for _ in range(3):
        lengths = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
        column = []
        for length in lengths:
            column.append(data[at:at + length])
            at += length
        columns.append(column)
    assert at == len(data)
    assert [(key, Record(identity, value)) for key, identity, value in zip(*columns, strict=True)] == [
        (key, CONTENT[key]) for key in sorted(CONTENT)[FIRST]]


def test_the_metarange_page_is_enough_to_read_a_metarange() -> None:
    data = (GOLDEN / "staging-metarange-v1.bin").read_bytes()
    assert struct.unpack_from("<6sHII", data) == (b"CLMETA", 1, 0, zlib.crc32(data[:12]))
    assert hashlib.blake2b(data[16:], digest_size=20, person=b"compactlib.meta").hexdigest() == METARANGE
    low, high, raggedness, count = struct.unpack_from("<QQII", data, 16)
    assert (low, high, raggedness) == (RULE.min_bytes, RULE.max_bytes, RULE.raggedness)
    at, entries = 40, []
    for _ in range(count):
        range_id, records, size, low, high = struct.unpack_from("<20sQQII", data, at)
        at += 44
        entries.append((range_id.hex(), data[at:at + low], data[at + low:at + low + high], records, size))
        at += low + high
    assert at == len(data)
    layer, _, base = stored(PlainFormat())
    assert entries == [(entry.range_id, entry.min_key, entry.max_key, entry.count, entry.size_bytes)
                       for entry in layer.ranges_of(base)]


def test_the_range_page_is_enough_to_check_a_parquet_range() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    rows = pq.read_table(GOLDEN / "staging-range-parquet-v1.bin").to_pylist()
    digest = hashlib.blake2b(struct.pack("<Q", len(rows)), digest_size=20, person=b"compactlib.range")
    for column in ("key", "identity", "data"):
        digest.update(struct.pack(f"<{len(rows)}I", *(len(row[column]) for row in rows)))
        digest.update(b"".join(row[column] for row in rows))
    assert digest.hexdigest() == RANGE
    assert [(row["key"], Record(row["identity"], row["data"])) for row in rows] == [
        (key, CONTENT[key]) for key in sorted(CONTENT)[FIRST]]


def test_the_examples_of_the_pages_match_the_written_bytes() -> None:
    for page, name in (("staging-range.md", "staging-range-plain-v1.bin"),
                       ("staging-metarange.md", "staging-metarange-v1.bin")):
        shown = re.search(r"```hex\n(.*?)```", (FORMATS_PAGES / page).read_text(), re.DOTALL)
        assert shown is not None
        listed = [line.strip().split("  ")[0] for line in shown[1].strip().splitlines()]
        assert (GOLDEN / name).read_bytes().startswith(bytes.fromhex("".join(listed)))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for golden_name, content in golden_files().items():
        (GOLDEN / golden_name).write_bytes(content)
    sys.exit(0)
