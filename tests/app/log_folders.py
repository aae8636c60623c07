# SPDX-License-Identifier: Apache-2.0
"""Small logs for the tests of the commands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from compactlib.indexset import IndexSet
from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog

ROOT = Path(__file__).resolve().parents[2]
LIMITS = SegmentLimits(max_entries=10)
LIVE = IndexSet.from_sorted([*range(3, 40, 4), *range(61, 68)])
"""Segments 1 to 4 are a quarter live, 5 and 6 dead, 7 mostly live, 8 is the newest."""


def make_log(folder: Path, *, snapshot: bool = True) -> Path:
    """A log of 75 entries of 100 bytes in 8 segments, with a snapshot at 72."""
    with SegmentLog(folder, LogOptions(limits=LIMITS)) as log:
        log.extend((index, 1, b"%100d" % index) for index in range(1, 76))
        if snapshot:
            log.record_snapshot(72, LIVE)
    return folder


def flip_byte(path: Path, offset: int) -> None:
    """Damage one byte of a file; a negative offset counts from its end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, tuple[bytes | str, int]]:
    """Everything in a folder: names, contents or links, and when each was last changed."""
    return {path.name: (os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "folder",
                        path.lstat().st_mtime_ns) for path in sorted(folder.iterdir())}


def compactlib_process(*arguments: str | Path, before: str = "") -> list[str]:
    """The command line of a process that runs the console script, after the Python statement `before`."""
    script = f"import sys; {before or 'pass'}\nfrom compactlib.app.cli import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", script, *map(str, arguments)]


def run_compactlib(*arguments: str | Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the console script in a process of its own, away from any terminal."""
    return subprocess.run(compactlib_process(*arguments, before=before), cwd=ROOT, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)


def wait_for_match(folder: Path, pattern: str) -> None:
    """Return once another process has made a file of this pattern; a minute without it is a failure."""
    for _ in range(6000):
        if any(folder.glob(pattern)):
            return
        time.sleep(0.01)
    raise TimeoutError(f"{pattern} did not appear in {folder}")
