# SPDX-License-Identifier: Apache-2.0
"""The copiers of a rewrite: with and without NumPy they give the same bytes, for any content of a segment."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from compactlib.errors import CompactlibError
from compactlib.indexset import IndexSet
from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog
from compactlib.raftlog.compaction.rewrite import Copier, joined_records
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.values import SegmentRef
from tests.raftlog.compaction_logs import filled, flip_byte, payload_of, payload_place, rewritten, vector_45
from tests.raftlog.wrapped_files import UnsyncedFiles

SIZES: dict[str, Callable[[random.Random], int]] = {
    "one size": lambda rng: 100, "empty": lambda rng: 0, "mixed": lambda rng: rng.choice([0, 1, 100, 5000]),
         "large": lambda rng: rng.choice([10, 40_000, 1 << 20, (1 << 20) + 1])}


def copiers() -> list[Copier]:
    pytest.importorskip("numpy")
    return [Copier(by_arrays=False), Copier()]


def joined(copier: Copier, readers: list[SegmentReader], live: IndexSet) -> tuple[bytes, bytes, int]:
    with ExitStack() as stack:
        parts = [copier.part(stack, reader.path, live.between(reader.index.first, reader.index.last),
                             SegmentRef(1, reader.index.first, reader.index.last)) for reader in readers]
        payload, read = b"", 0
        for part in parts:
            for piece, got in copier.pieces(part):
                payload += bytes(piece)
                read += got
        return payload, joined_records(parts, 0), read


@pytest.mark.parametrize("name", SIZES)
def test_both_copy_live_bytes_exactly(name: str, tmp_path: Path) -> None:
    """The same two copiers serve all logs, as tasks use one after the other."""
    both = copiers()
    for seed in range(3 if name == "large" else 12):
        rng = random.Random(seed)
        count = 12 if name == "large" else 400
        payloads = {index: rng.randbytes(SIZES[name](rng)) for index in range(1, 2 * count + 2)}
        folder = tmp_path / f"log-{seed}"
        limits = SegmentLimits(max_entries=count, max_bytes=1 << 30)
        with SegmentLog(folder, LogOptions(files=UnsyncedFiles(), limits=limits)) as log:
            for index, payload in payloads.items():
                log.append([(index, 1 + index // 100, payload)])
        share, run = rng.choice([0.05, 0.5, 1.0]), rng.choice([1, 7])
        live = IndexSet.from_iterable(index for index in range(1, 2 * count + 1)
                                      if index == 1 or random.Random(seed * 1000 + index // run).random() < share)
        readers = [SegmentReader(folder / segment_name(number)) for number in (1, 2)]
        plain, fast = (joined(each, readers, live) for each in both)
        assert plain == fast
        assert plain[0] == b"".join(payloads[index] for index in live)
        for reader in readers:
            reader.close()


def pieces_of(copier: Copier, path: Path, live: IndexSet, ref: SegmentRef) -> tuple[bytes, bytes] | str:
    """Return a copier's output of a segment, or its error."""
    try:
        with ExitStack() as stack:
            part = copier.part(stack, str(path), live, ref)
            payload = b"".join(bytes(piece) for piece, _ in copier.pieces(part))
            return payload, joined_records([part], 0)
    except CompactlibError as error:
        return f"{type(error).__name__}: {error}"


def test_both_name_a_damaged_live_entry_and_skip_a_dead_one(tmp_path: Path) -> None:
    vector_45(tmp_path)
    path = tmp_path / segment_name(1)
    with SegmentReader(path) as reader:
        ref = SegmentRef(1, reader.index.first, reader.index.last)
    live = IndexSet.from_iterable([ref.first, ref.first + 2, ref.last])
    for index in (ref.first + 1, ref.first + 2):
        flip_byte(path, payload_place(tmp_path, 1, index))
        plain, fast = (pieces_of(copier, path, live, ref) for copier in copiers())
        assert plain == fast
        assert isinstance(plain, str) == (index in live)
    place = payload_place(tmp_path, 1, ref.first + 2)
    assert f"corrupt data in {path} at offset {place} (index {ref.first + 2})" in plain


def test_both_copy_live_entries_between_gaps_and_name_missing_ones(tmp_path: Path) -> None:
    """A merged segment has gaps in place of dead entries, and a live set that names one is wrong."""
    filled(tmp_path, last=101, snapshot=100, live=())
    held = IndexSet.from_runs([(1, 40), (50, 50), (60, 90)])
    path, ref = Path(rewritten(tmp_path, [1, 2, 3, 4, 5, 6], held).path), SegmentRef(1, 1, 100)
    for live in (held, IndexSet.range(40, 40) | IndexSet.range(60, 61), IndexSet.range(50, 50)):
        plain, fast = (pieces_of(copier, path, live, ref) for copier in copiers())
        assert plain == fast
        assert plain[0] == b"".join(map(payload_of, live))
    for missing in (41, 55, 91):
        live = held | IndexSet.range(missing, missing)
        plain, fast = (pieces_of(copier, path, live, ref) for copier in copiers())
        assert plain == fast
        assert plain == (f"LiveIndexMissing: segment 1 holds 72 entries from 1 to 100, but not 1 that are live, the "
                         f"first of them {missing}; restore the segment from a copy")
