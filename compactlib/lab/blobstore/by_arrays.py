# SPDX-License-Identifier: Apache-2.0
"""The steps of a replay that most operations run through, by NumPy: the same columns after them as after the loops of
`records`. Memory: a few columns of what one step is about."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compactlib.lab.blobstore.records import DEAD, Records


def put_plainly(keys: array[int], times: array[int], given: array[int], rows: array[int], size: int, records: Records,
                valid: array[int], moments: array[float]) -> None:
    """See `records.put_plainly`."""
    owners, at, numbers = np.frombuffer(keys, np.int32), np.frombuffer(times, np.int64), np.frombuffer(given, np.int32)
    current, place = np.frombuffer(records.current, np.int32), np.frombuffer(records.place, np.int32)
    order, again = by_key(owners)
    old = current[owners]
    old[order[1:][again]] = numbers[order[:-1][again]]
    last = order[np.append(~again, True)]
    current[owners[last]] = numbers[last]
    place[numbers] = np.frombuffer(rows, np.int32)
    np.frombuffer(records.written, np.int64)[numbers] = at
    if records.one_size != size:
        np.frombuffer(records.size, np.uint32)[numbers] = size
    at_once = bisect_left(times, times[-1])
    for record in old[at_once:][old[at_once:] >= 0].tolist():
        records.leaves(record, times[-1])
    replaces = np.flatnonzero(old[:at_once] >= 0)
    gone = old[replaces]
    there = place[gone]
    dead = np.frombuffer(records.size, np.uint32)[gone].astype(np.int64) if records.one_size != size else size
    np.subtract.at(np.frombuffer(valid, np.int64), there, dead)
    np.add.at(np.frombuffer(moments, np.float64), there, (at[replaces] - records.since).astype(np.float64) * dead)
    place[gone] = DEAD


def by_key(owners: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Which operations come first by key, then in their order; of all but the first, if its key is that before it."""
    by_key = (owners.astype(np.int64) << 32) + np.arange(len(owners))
    by_key.sort()
    return by_key & 0xFFFFFFFF, by_key[1:] >> 32 == by_key[:-1] >> 32


def sorted_out(members: Sequence[array[int]], rows: Sequence[int], place: array[int], free: array[int]
               ) -> tuple[array[int], list[int]]:
    """See `records.sorted_out`."""
    numbers, alive, ends = _told_apart(members, rows, place)
    free.frombytes(numbers[~alive].tobytes())
    return array("i", numbers[alive].tobytes()), np.append(0, np.cumsum(alive))[ends].tolist()


def sums_in(members: Sequence[array[int]], rows: Sequence[int], records: Records, columns: Sequence[array[int]]
            ) -> list[list[int]]:
    """See `records.sums_in`."""
    numbers, alive, ends = _told_apart(members, rows, records.place)
    keys = np.frombuffer(records.key, np.int32).take(numbers)
    if records.waiting:
        alive &= ~np.isin(numbers, np.frombuffer(records.waiting, np.int32))
    # With a number behind the last one, where empty segments at the end begin.
    parts = np.zeros((1 + len(columns), len(numbers) + 1), np.int64)
    parts[0, :-1] = alive
    for part, column in zip(parts[1:], columns, strict=True):
        np.multiply(np.frombuffer(column, np.int64).take(keys), alive, out=part[:-1])
    starts = np.zeros(len(rows), np.int64)
    starts[1:] = ends[:-1]
    # What it gives for an empty segment is the next one's first number.
    sums = np.add.reduceat(parts, starts, axis=1) * (ends > starts)
    return sums.T.tolist()  # type: ignore[no-any-return]


def _told_apart(members: Sequence[array[int]], rows: Sequence[int], place: array[int]
                ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """The members of segments, whether each is valid, and behind which of them each segment ends."""
    lengths = [len(each) for each in members]
    numbers = np.frombuffer(b"".join(members), np.int32)
    alive = np.frombuffer(place, np.int32).take(numbers) == np.repeat(np.array(rows, np.int32), lengths)
    return numbers, alive, np.cumsum(lengths)


def lay_out(kept: array[int], rows: Sequence[int], each: int, records: Records) -> list[int]:
    """See `records.lay_out`."""
    numbers = np.frombuffer(kept, np.int32)
    np.frombuffer(records.place, np.int32)[numbers] = np.repeat(np.array(rows, np.int32), each)[:len(numbers)]
    newest = np.frombuffer(records.written, np.int64)[numbers]
    return np.maximum.reduceat(newest, np.arange(0, len(numbers), each)).tolist()  # type: ignore[no-any-return]
