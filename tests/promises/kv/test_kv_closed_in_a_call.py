# SPDX-License-Identifier: Apache-2.0
"""No call of a store in a file changes it after `close`: the file can be copied, or opened by a forked child."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.errors import Closed
from compactlib.kv import SqliteStore
from tests.harness.closing import Closing, close_everywhere
from tests.harness.effort import Effort

CELL, OTHER = (b"p", b"k"), (b"p", b"other")
CALLS: dict[str, Callable[[SqliteStore], object]] = {
    "set": lambda store: store.set(*CELL, b"new"),
    "set_if": lambda store: store.set_if(*CELL, b"new", store.get(*CELL).predicate),
    "transact": lambda store: store.transact({OTHER: None}, {CELL: b"new"}),
    "delete": lambda store: store.delete(*CELL),
    "scan": lambda store: list(store.scan(b"p", page_size=1)),
    "audit": lambda store: store.audit(),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_changes_a_file_after_a_close(call: str, tmp_path: Path, effort: Effort) -> None:
    def closed_before(line: int) -> Closing:
        path, closing, is_done, found = tmp_path / str(line), Closing(lambda path: False), False, list[bytes]()

        def look() -> None:
            with contextlib.closing(SqliteStore(path)) as later:
                found.append(later.get_many([CELL])[CELL].value if later.get_many([CELL]) else b"")

        with contextlib.closing(SqliteStore(path)) as store:
            store.set(*CELL, b"old")
            with closing.before(line, store.close, lambda _: look()), contextlib.suppress(Closed):
                CALLS[call](store)
                is_done = True
            if closing.closed is not None:
                closing.closed.result(60)
        look()
        changed = b"" if call == "delete" else b"new"
        expected = changed if is_done and call not in ("scan", "audit") else b"old"
        assert set(found) == {expected}, f"closed before line {line}"
        return closing

    close_everywhere(closed_before, effort(20, 200))
