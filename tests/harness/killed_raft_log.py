# SPDX-License-Identifier: Apache-2.0
"""A process that lives a random life on a store until it is killed: `python -m tests.harness.killed_raft_log DIR
SEED`.

It tells each operation before it is done, and each promise after; so does one line before each change to the disk, so
that whoever counts lines hits those moments evenly. Flushes run in the background, and majors in a thread beside it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path

from compactlib.errors import Closed
from tests.harness.asking_files import AskingFiles
from tests.harness.raft_world import KINDS, LOGS, World, models_of, store_options

LIVING = tuple(kind for kind in KINDS if kind != "reopen")


def tell(line: str) -> None:
    """Hand over one line, so that it is in the pipe whatever happens next."""
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def main(folder: str, seed: int) -> None:
    """Live until killed."""
    files = AskingFiles(lambda operation, path: tell("disk"))
    world = World(Path(folder), acknowledge=lambda promised: tell("promised " + json.dumps(promised)),
                  options=store_options(files, background=True))
    world.models = models_of(world.store)

    def compact() -> None:
        while True:
            for name in LOGS:
                try:
                    world.log(name).compact(policy=world.log(name).policy)
                except Closed:
                    return

    for name in LOGS:
        world.log(name)
    threading.Thread(target=compact, daemon=True).start()
    rng = random.Random(seed)
    while True:
        operation = (rng.choice(LIVING), rng.randrange(2), rng.randrange(100), rng.randrange(100))
        tell("do " + json.dumps(operation))
        world.perform(operation)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
