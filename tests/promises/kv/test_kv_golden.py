# SPDX-License-Identifier: Apache-2.0
"""A key-value store in a file of the first release is read and written."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from compactlib.kv import SqliteStore


def test_a_file_of_the_first_release_is_read(tmp_path: Path) -> None:
    # As `docs/formats/kv-sqlite.md` says; the copy, because opening changes SQLite's other files in the folder.
    golden = Path(__file__).parents[1] / "golden" / "kv" / "kv-v1.sqlite"
    header = golden.read_bytes()[:100]
    assert (header[60:64], header[68:72]) == (b"\0\0\0\1", b"CLKV")
    shutil.copy(golden, tmp_path / "kv")
    with contextlib.closing(SqliteStore(tmp_path / "kv", create=False)) as store:
        cells = {(partition, entry.key): (entry.value, entry.predicate)
                 for partition in (b"p", b"\xff") for entry in store.scan(partition)}
        assert cells == {(b"p", b"\x00\xff"): (b"", 2), (b"p", b"k"): (b"v2", 4),
                         (b"\xff", b"large"): (bytes(range(256)) * 20, 3)}
        store.set_if(b"p", b"k", b"v3", 4)
        store.audit()
