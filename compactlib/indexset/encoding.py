# SPDX-License-Identifier: Apache-2.0
"""The stored form of an `IndexSet`: `docs/formats/indexset.md` describes it to the byte.

    0        magic CLINDSET, version u16, number of runs u64                    (18 bytes, little-endian)
    18       one head per run, then one tail per run of two or more members     (varints)
    end - 4  CRC-32 of everything before it
"""

from __future__ import annotations

from array import array
from itertools import accumulate, compress, islice
from operator import lt, sub

from compactlib.errors import CorruptData
from compactlib.files.record_frame import RecordFrame
from compactlib.files.varints import decode_varints, encode_varints
from compactlib.indexset.runs import MAX_INDEX, Runs

_FRAME = RecordFrame("index set format", b"CLINDSET", 1, "<HQ")

_ARRAY_RUNS = 1024
"""From so many runs on, NumPy is worth its import."""


def encode(runs: Runs) -> bytes:
    """The bytes of a canonical family; equal families give equal bytes."""
    firsts, lasts = runs
    body = _small_body(runs) if len(firsts) >= _ARRAY_RUNS else None
    if body is not None:
        return _FRAME.encode(len(firsts), body=body)
    # A head holds how many indexes the run's gap has beyond the one that must be there, doubled, plus 1 if a tail
    # follows. The first run's gap has no index that must be there.
    long = list(map(lt, firsts, lasts))
    distances = [*firsts[:1], *[d - 2 for d in map(sub, islice(firsts, 1, None), lasts)]]
    heads = [2 * gap + has_tail for gap, has_tail in zip(distances, long, strict=True)]
    tails = [last - first - 1 for first, last in compress(zip(firsts, lasts, strict=True), long)]
    return _FRAME.encode(len(firsts), body=encode_varints(heads + tails))


def decode(data: bytes | bytearray | memoryview, path: str, offset: int) -> Runs:
    """The canonical family that `encode` was given.

    Raises:
        CorruptData: not what `encode` wrote.
        Unsupported: written by another release.
    """
    runs, body = _FRAME.decode(bytes(data), path, offset=offset)
    made = _small_runs(body, runs) if runs >= _ARRAY_RUNS else None
    if made is not None:
        return made
    place = offset + _FRAME.header_bytes
    try:
        numbers = decode_varints(body)
    except ValueError as error:
        told, at = error.args
        raise CorruptData(path=path, offset=place + at, expected="numbers in the fewest bytes", found=told) from None
    long = [head & 1 for head in numbers[:runs]]
    if len(long) != runs or len(numbers) - runs != sum(long):
        raise CorruptData(path=path, offset=place, expected=f"{runs} heads and a tail for each that announces one",
                          found=f"{len(numbers)} numbers, {sum(long)} tails announced")
    tails = iter(numbers[runs:])
    spans = [next(tails) + 1 if has_tail else 0 for has_tail in long]
    steps = [(head >> 1) + span + 2 for head, span in zip(numbers, spans, strict=False)]
    if steps:
        steps[0] -= 2
    lasts = list(accumulate(steps))
    if lasts and lasts[-1] > MAX_INDEX:
        raise CorruptData(path=path, offset=place, expected=f"indexes up to {MAX_INDEX}", found=str(lasts[-1]))
    return array("Q", list(map(sub, lasts, spans))), array("Q", lasts)


def _small_body(runs: Runs) -> bytes | None:
    """The quick way for small numbers, where NumPy is installed; the bytes are the same."""
    try:
        from compactlib.indexset.array_encoding import small_body
    except ImportError:
        return None
    return small_body(runs)


def _small_runs(body: bytes, runs: int) -> Runs | None:
    try:
        from compactlib.indexset.array_encoding import small_runs
    except ImportError:
        return None
    return small_runs(body, runs)
