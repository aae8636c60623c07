# SPDX-License-Identifier: Apache-2.0
"""A file that was empty at the opening, and that another program fills before the store has it, is that program's."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, Unsupported
from compactlib.kv import SqliteStore
from compactlib.kv.errors import NotAStore


@pytest.mark.parametrize(("application", "version", "error"), [(7, 3, NotAStore), (0x434C4B56, 2, Unsupported)])
def test_file_that_another_program_fills_meanwhile_is_left_alone(
        application: int, version: int, error: type[CompactlibError], tmp_path: Path) -> None:
    """Another application, and a later release of the library."""
    path = tmp_path / "kv"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        class Filling(ManualClock):
            def sleep(self, seconds: float) -> None:
                if other.in_transaction:
                    other.execute("CREATE TABLE theirs (x)")
                    other.execute(f"PRAGMA application_id = {application}")
                    other.execute(f"PRAGMA user_version = {version}")
                    other.execute("COMMIT")

        with pytest.raises(error):
            SqliteStore(path, clock=Filling())
        assert not other.in_transaction
        assert other.execute("PRAGMA application_id").fetchone() == (application,)
        assert other.execute("PRAGMA user_version").fetchone() == (version,)
        assert other.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [("theirs",)]
