# SPDX-License-Identifier: Apache-2.0
"""A process that lives a random life on a log until it is killed: `python -m tests.raftlog.crash.killed_writer FOLDER
SEED`.

Each line of its journal goes to its standard output in one write, before or after the call that it is about. So does
one line, `disk ...`, before each change to the disk, so that whoever counts lines hits those moments evenly.
"""

from __future__ import annotations

import os
import random
import sys

from compactlib.raftlog import SegmentLog
from tests.raftlog.compaction_logs import options
from tests.raftlog.crash.journal import Life, Line
from tests.raftlog.wrapped_files import WatchedFiles


def tell(line: Line) -> None:
    """Hand over one line, so that it is in the pipe whatever happens next."""
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def main(folder: str, seed: int) -> None:
    """Live until killed."""
    files = WatchedFiles(lambda operation, path: tell(f"disk {operation}"))
    with SegmentLog(folder, options(files, keep_links_seconds=0.0)) as log:
        terms = [entry.term for entry in log.entries()]
        life = Life(log, random.Random(seed), tell, term=1 + max(terms, default=0))
        while True:
            for _ in life.steps(100):
                pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
