# SPDX-License-Identifier: Apache-2.0
"""Processes on one SQLite store: `python -m tests.kv.sqlite_writer count FILE TIMES`, or `... live FILE`."""

from __future__ import annotations

import os
import sys
from itertools import count

from compactlib.kv import KeyNotFound, PredicateFailed, SqliteStore


def count_up(path: str, times: int) -> None:
    """Add one to a counter, by compare-and-set."""
    store = SqliteStore(path, busy_seconds=60.0)
    for _ in range(times):
        while True:
            try:
                try:
                    found = store.get(b"p", b"counter")
                except KeyNotFound:
                    store.set_if(b"p", b"counter", b"1", None)
                else:
                    store.set_if(b"p", b"counter", b"%d" % (int(found.value) + 1), found.predicate)
                break
            except PredicateFailed:
                pass
    store.close()


def live(path: str) -> None:
    """Increment a pair of keys together, and print each number before and after, until killed."""
    store = SqliteStore(path)
    for number in count(int(store.get(b"left", b"k").value) + 1):
        os.write(sys.stdout.fileno(), b"begin %d\n" % number)
        text = b"%d" % number
        found = store.get(b"left", b"k")
        changes = {(b"left", b"k"): text, (b"right", b"k"): text, (b"log", b"%010d" % number): bytes(500)}
        store.transact({(b"left", b"k"): found.predicate}, changes)
        os.write(sys.stdout.fileno(), b"done %d\n" % number)


if __name__ == "__main__":
    if sys.argv[1] == "count":
        count_up(sys.argv[2], int(sys.argv[3]))
    else:
        live(sys.argv[2])
