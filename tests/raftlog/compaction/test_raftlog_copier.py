# SPDX-License-Identifier: Apache-2.0
"""The copiers of a rewrite: with and without NumPy they give the same bytes, whatever lies in a segment."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.copier import Copier
from compactlib.raftlog.log.segment_log import SegmentLog
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import SegmentLimits, SegmentRef
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.reader import SegmentReader
from tests.raftlog.wrapped_files import UnsyncedFiles

SIZES: dict[str, Callable[[random.Random], int]] = {
    "one size": lambda rng: 100, "empty": lambda rng: 0, "mixed": lambda rng: rng.choice([0, 1, 100, 5000]),
         "large": lambda rng: rng.choice([10, 40_000, 1 << 20, (1 << 20) + 1])}


def copiers() -> list[Copier]:
    found = [Copier()]
    array_copier = pytest.importorskip("compactlib.raftlog.compaction.array_copier")
    return [*found, array_copier.ArrayCopier()]


def joined(copier: Copier, readers: list[SegmentReader], live: IndexSet) -> tuple[bytes, bytes, int]:
    parts = [copier.part(reader, live.between(reader.index.first, reader.index.last),
                         SegmentRef(1, reader.index.first, reader.index.last)) for reader in readers]
    payload, read = b"", 0
    for part in parts:
        for piece, got in copier.pieces(part):
            payload += bytes(piece)
            read += got
    return payload, copier.encoded_index(parts, 1000), read


@pytest.mark.parametrize("name", SIZES)
def test_both_give_what_is_live_byte_for_byte(name: str, tmp_path: Path) -> None:
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
                log.append(index, 1 + index // 100, payload)
        share, run = rng.choice([0.05, 0.5, 1.0]), rng.choice([1, 7])
        live = IndexSet.from_iterable(index for index in range(1, 2 * count + 1)
                                      if index == 1 or random.Random(seed * 1000 + index // run).random() < share)
        readers = [SegmentReader(folder / segment_name(number)) for number in (1, 2)]
        plain, fast = (joined(each, readers, live) for each in both)
        assert plain == fast
        assert plain[0] == b"".join(payloads[index] for index in live)
        for reader in readers:
            reader.close()
