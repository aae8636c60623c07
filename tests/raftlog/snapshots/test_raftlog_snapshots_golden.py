# SPDX-License-Identifier: Apache-2.0
"""Snapshots written by an earlier release stay readable, and are as their page says."""

from __future__ import annotations

from pathlib import Path

from compactlib.files import LocalFiles
from compactlib.raftlog import SnapshotFolder
from tests.raftlog.snapshots.test_raftlog_snapshots import PlacesMachine, machine, meta

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "raftlog" / "snapshots_v1"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "raftlog-snapshot.md"


def test_snapshots_of_version_1_stay_readable(tmp_path: Path) -> None:
    for path in GOLDEN.iterdir():
        out = LocalFiles().create(tmp_path / path.name)
        out.write_at(0, [path.read_bytes()])
        out.close()
    store = SnapshotFolder(tmp_path)
    assert store.latest() == meta()
    restored = PlacesMachine()
    with store.open_state() as reader:
        restored.restore(reader.pieces())
    assert restored.places == {"a": 5, "b": 10, "c": 15}


def test_the_files_on_the_page_are_as_this_release_writes_them(tmp_path: Path) -> None:
    SnapshotFolder(tmp_path).write(meta(), machine().snapshot())
    blocks = PAGE.read_text().split("test_raftlog_snapshots_golden.py")[1].split("```hex\n")[1:]
    for suffix, block in zip(("state", "live", "snapshot"), blocks, strict=True):
        shown = bytes.fromhex("".join(line[4:] for line in block.split("```")[0].splitlines()))
        (path,) = tmp_path.glob(f"*.{suffix}")
        assert path.read_bytes() == shown == (GOLDEN / path.name).read_bytes()
