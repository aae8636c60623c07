# SPDX-License-Identifier: Apache-2.0
"""Damage to a file, and an executor that does it to what its tasks wrote: a disk or a worker that is not sound."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.observer import Observer

Damage = Callable[[bytes], bytes]
"""What becomes of a file's bytes."""


def flip_a_bit(data: bytes) -> bytes:
    """One bit in the middle."""
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1:]


def cut_the_tail(data: bytes) -> bytes:
    """The last ten bytes are missing."""
    return data[:-10]


def zero_the_tail(data: bytes) -> bytes:
    """The last ten bytes are zeros, as where a file grew and its last block was not written."""
    return data[:-10] + bytes(10)


def zero_a_page(data: bytes) -> bytes:
    """Half of it, 4 KiB at most, is zeros from the middle on, as where a block was not written."""
    place = len(data) // 2
    count = min(4096, len(data) - place)
    return data[:place] + bytes(count) + data[place + count:]


def zero_the_head(data: bytes) -> bytes:
    """The first sixteen bytes are zeros."""
    return bytes(16) + data[16:]


every_damage = pytest.mark.parametrize(
    "damage", [flip_a_bit, cut_the_tail, zero_the_tail, zero_a_page, zero_the_head])


@attrs.define
class DamagingExecutor:
    """Runs tasks as they are, and damages the new files of some before it answers.

    Attributes:
        damage: what becomes of a new file.
        numbers: which outcomes are damaged, counted from 0 over all runs; `None` for all.
        seen: how many outcomes there were.
    """

    damage: Damage
    numbers: frozenset[int] | None = None
    seen: int = 0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteResult | RewriteFailure]:
        """See `Executor.run`."""
        for outcome in LocalExecutor().run(tasks, budget=budget, observer=observer):
            if isinstance(outcome, RewriteResult) and (self.numbers is None or self.seen in self.numbers):
                for file in outcome.files:
                    damage_file(file.path, self.damage)
            self.seen += 1
            yield outcome


def damage_file(path: str | os.PathLike[str], damage: Damage) -> None:
    """Damage a file in its place."""
    with open(path, "r+b") as file:
        data = file.read()
        changed = damage(data)
        file.seek(0)
        file.write(changed)
        file.truncate()
