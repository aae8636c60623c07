# SPDX-License-Identifier: Apache-2.0
"""What a store reads after a kill of its last owner survives a power failure."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from compactlib.kv import SqliteStore


def test_opening_makes_the_commits_of_a_killed_process_durable(tmp_path: Path) -> None:
    """They may be in the `-wal` without a sync. SQLite moves them into the file only after a sync of the `-wal`."""
    value, left = b"of the killed process", tmp_path / "left"
    left.mkdir()
    with closing(SqliteStore(tmp_path / "kv")) as store:
        store.set(b"p", b"k", value)
        for name in ("kv", "kv-wal"):
            shutil.copy(tmp_path / name, left)
    assert value not in (left / "kv").read_bytes()
    with closing(SqliteStore(left / "kv")):
        assert value in (left / "kv").read_bytes()
