# SPDX-License-Identifier: Apache-2.0
"""Scans that an interrupt meets, and that go on."""

from __future__ import annotations

from compactlib.kv import MemoryStore
from compactlib.testing.interrupts import Interrupted, interruptions


def test_a_scan_that_goes_on_after_an_interrupt_gives_each_entry_once() -> None:
    store = MemoryStore()
    keys = [b"%d" % number for number in range(7)]
    for key in keys:
        store.set(b"p", key, b"value")

    def scanned(interrupted: Interrupted) -> list[bytes]:
        found: list[bytes] = []
        entries = store.scan(b"p", page_size=2)
        with interrupted:
            while True:
                try:
                    found.append(next(entries).key)
                except KeyboardInterrupt:
                    continue
                except StopIteration:
                    return found

    for interrupted in interruptions(lambda: list(store.scan(b"p", page_size=2)), 1000):
        assert scanned(interrupted) == keys, interrupted.where
