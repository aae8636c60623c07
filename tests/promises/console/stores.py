# SPDX-License-Identifier: Apache-2.0
"""Small stores of each kind, and the console in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs

from compactlib.blobstore import BlobStore, BlobStoreConfig
from compactlib.indexset import IndexSet
from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects
from compactlib.raftlog import LogOptions, RaftLogStore, SegmentLimits, SegmentLog
from compactlib.staging import CommittedRanges, Repository

ROOT = Path(__file__).resolve().parents[3]
LIVE = IndexSet.from_sorted([*range(3, 40, 4), *range(61, 68)])
"""Segments 1 to 4 are a quarter live, 5 and 6 dead, 7 mostly live, 8 is the newest."""
CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, max_blob_bytes=0,
                         deleted_retention_seconds=0)


def raft_log(folder: Path, *, snapshot: bool = True) -> Path:
    """A log of 75 entries of 100 bytes in 8 segments, with a snapshot at 72."""
    with SegmentLog(folder / "log", LogOptions(limits=SegmentLimits(max_entries=10))) as log:
        log.append((index, 1, b"%100d" % index) for index in range(1, 76))
        if snapshot:
            log.snapshot(72, LIVE)
    return folder / "log"


def store_of_logs(folder: Path) -> Path:
    with RaftLogStore(folder / "logs") as store:
        for name, count in (("a", 3), ("b", 5)):
            log = store.log(name)
            log.append((index, 1, b"entry") for index in range(1, count + 1))
            log.sync()
        store.flush()
        store.log("b").append([(6, 1, b"in the write-ahead log")])
    return folder / "logs"


def blob_store(folder: Path, *, blobs: int = 40) -> Path:
    """A store of which every second blob was deleted."""
    config = attrs.evolve(CONFIG, capacity_bytes=CONFIG.capacity_bytes * blobs // 40)
    with BlobStore(folder / "blobs", config) as store:
        for number in range(blobs):
            store.put(b"%d" % number, b"x" * 900)
        for number in range(0, blobs, 2):
            store.delete(b"%d" % number)
    return folder / "blobs"


def repository(folder: Path) -> Path:
    """A repository with a commit, and a put and a delete on top of it."""
    store, ranges = SqliteStore(folder / "branches.sqlite"), CommittedRanges(LocalObjects(folder / "ranges"))
    with contextlib.closing(store), Repository(store, ranges) as opened:
        branch = opened.create_branch("main")
        branch.put(b"a", b"1")
        branch.put(b"b", b"2")
        branch.commit("first")
        branch.put(b"c", b"3")
        branch.delete(b"a")
    return folder / "branches.sqlite"


MAKERS: dict[str, Callable[[Path], Path]] = {
    "raft log": raft_log, "store of logs": store_of_logs, "blob store": blob_store, "repository": repository}


def flip_byte(path: Path, offset: int) -> None:
    """Damage one byte of a file; a negative offset counts from its end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def all_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def console(*arguments: str | Path, before: str = "pass") -> list[str]:
    """The command line of a process that runs the console after a Python statement."""
    script = f"import os, sys; {before}\nfrom compactlib.cli import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", script, *map(str, arguments)]


def run_console(*arguments: str | Path, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """Run the console in a process of its own, away from any terminal."""
    return subprocess.run(console(*arguments, before=before), cwd=ROOT, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)
