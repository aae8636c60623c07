# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C anywhere in a memtable: its counts hold, and what was interrupted can be done again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from compactlib.raftlog.errors import Overwriting
from compactlib.raftlog.memtable.table import Memtable
from compactlib.testing.interrupts import Interrupted

STEPS: list[Callable[[Memtable, bytes], object]] = [
    lambda table, payload: table.insert_run(1, 1, [payload, payload]),
    lambda table, payload: table.insert_run(3, 1, [payload]),
    lambda table, payload: table.insert_run(4, 2, [payload, payload]),
    lambda table, payload: table.insert_sparse(9, 2, payload, None),
    lambda table, payload: table.cut(4),
    lambda table, payload: table.insert_run(5, 3, [payload]),
    lambda table, payload: table.freeze(1),
    lambda table, payload: table.insert_run(4, 4, [payload]),
    lambda table, payload: table.release(table.frozen(1)),
    lambda table, payload: table.insert_run(5, 4, [payload]),
]


def seen(table: Memtable) -> list[tuple[int, int, bytes]]:
    """What reads find."""
    found = map(table.find, range(12))
    return [(entry.index, entry.term, entry.payload) for entry in found if entry is not None]


def test_an_interrupt_anywhere_leaves_a_table_in_which_the_step_can_be_done_again() -> None:
    place, was_interrupted = 1, True
    while was_interrupted:
        table, sound, interrupt = Memtable(), Memtable(), Interrupted(place)
        for step in STEPS:
            payload, before = b"first", len(interrupt.where)
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                step(table, payload)
            table.audit()
            if len(interrupt.where) > before:
                payload = b"again"
                with contextlib.suppress(Overwriting):  # it was done
                    step(table, payload)
                table.audit()
            step(sound, payload)
            assert [each[:2] for each in seen(table)] == [each[:2] for each in seen(sound)], interrupt.where
            assert table.last == sound.last
            if payload == b"again" and step is not STEPS[3]:
                assert seen(table) == seen(sound), interrupt.where
        was_interrupted = bool(interrupt.where)
        place += 1
    assert place > 20
