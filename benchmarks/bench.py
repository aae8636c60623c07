# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks of this folder, each several times in processes of their own, and writes one table of figures.

    python benchmarks/bench.py [--only NAME ...] [--quick] [--times N] [--json FILE] [--page FILE]

`make bench` is this with the peers installed: `make bench ONLY="scheduler raftlog_log" SIZE=quick TIMES=3`. The table
on the page has, of figures with the same unit and goal, the worst, and every missed goal: the rows of a script that was
run are replaced, the others stay. The JSON has all figures of this call, with each run's ratio.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import attrs
from measure import Goal

from compactlib.report import Table

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
HEAD = ("| script | figure | ours | ratio | goal | measured |\n"
        "|---|---|---|---|---|---|\n")
"""Where the table begins on the page; it ends with the first line that is no row."""

def scripts() -> list[str]:
    """The names of all benchmarks."""
    return sorted(path.stem for path in HERE.glob("*.py")
                  if path.stem not in {"bench", "compare"} and '__name__ == "__main__"' in path.read_text())

@attrs.frozen
class Row:
    """One figure of all runs of a script.

    Attributes:
        script: which.
        found: the figure as each run wrote it.
        measured: when, at what size, how often.
    """

    script: str
    found: Sequence[dict[str, object]]
    measured: str

    def _median(self, field: str) -> float:
        return statistics.median(float(str(each[field])) for each in self.found)

    def to_json(self) -> dict[str, object]:
        """The figure: medians over the runs, the ratio of each, the worst by the goal."""
        first, ratios = self.found[0], [float(str(each["ratio"])) for each in self.found]
        goal = Goal.read(str(first["goal"]))
        median = statistics.median(ratios)
        return {"script": self.script, "figure": first["figure"], "unit": first["unit"],
                "value": self._median("value"), "reference": first["reference"],
                "reference_value": self._median("reference_value"), "ratio": median, "ratios": ratios,
                "worst": None if goal is None else max(ratios, key=goal.beyond),
                "spread": (max(ratios) - min(ratios)) / median if median else 0.0, "goal": first["goal"],
                "met": None if goal is None else goal.beyond(median) <= 0, "measured": self.measured}

    def line(self) -> str:
        """Its line of the page's table."""
        told = self.to_json()
        missed = "" if told["met"] else ", **missed**"
        cells = [self.script, f"`{told['figure']}`", f"{told['value']:,.4g} {told['unit']}", f"{told['ratio']:.3g}",
                 f"{told['goal']}{missed}", self.measured.partition(",")[0]]
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |\n"

def run(script: str, times: int, *, quick: bool) -> list[Row]:
    """Run a script several times, and return its figures; if a run wrote no figures, print why and return none."""
    began = time.perf_counter()
    measured = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}{', quick' * quick}, {times} run{'s' * (times > 1)}"
    found: dict[str, list[dict[str, object]]] = {}
    with tempfile.TemporaryDirectory(prefix="compactlib-bench-") as folder:
        for number in range(times):
            written = Path(folder) / f"{number}.json"
            ended = subprocess.run([sys.executable, str(HERE / f"{script}.py"), *(["--quick"] if quick else []),
                                    "--json", str(written)], check=False)
            if not written.exists():
                print(f"{script}: exit code {ended.returncode}, and no figures", file=sys.stderr)
                return []
            for figure in json.loads(written.read_text()):
                found.setdefault(figure["figure"], []).append(figure)
    print(f"{script}: {times} times in {time.perf_counter() - began:.0f} s, load now {os.getloadavg()[0]:.1f}",
          flush=True)
    return [Row(script, each, measured) for each in found.values()]

def machine() -> str:
    """Return the machine and the versions in one line."""
    cpu = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.processor())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (f"{os.cpu_count()} cores of {cpu}, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, "
            f"Python {platform.python_version()}.")

def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows of the page: of one script, unit and goal the worst, and every missed goal."""
    aimed = [(goal.beyond(float(str(found["ratio"]))), (row.script, found["unit"], found["goal"]), row)
             for row in rows if (goal := Goal.read(str((found := row.to_json())["goal"]))) is not None]
    worst = {kind: max(beyond for beyond, other, _ in aimed if other == kind) for _, kind, _ in aimed}
    return [row for beyond, kind, row in aimed if beyond > 0 or beyond == worst[kind]]

def write_page(page: Path, rows: Sequence[Row]) -> None:
    """Put the lines of these scripts in place of their earlier ones."""
    before, head, after = page.read_text().partition(HEAD)
    if not head:
        raise SystemExit(f"{page} has no line {HEAD.splitlines()[0]!r}; put it back, the table goes there")
    old = list(takewhile(lambda line: line.startswith("| "), after.splitlines(keepends=True)))
    after = after[sum(map(len, old)):]
    new = {row.script for row in rows}
    kept = [line for line in old if line.split("|")[1].strip() not in new]
    lines = kept + [row.line() for row in shown(rows)]
    lines.sort(key=lambda line: line.split("|")[1])
    begin, label, rest = before.rpartition("Measured on: ")
    if label:
        before = begin + label + machine() + rest[rest.index("\n"):]
    page.write_text(before + head + "".join(lines) + after)

def main() -> int:
    """Run, print, write; the exit code is 1 if a script gave no figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=scripts(), default=scripts())
    parser.add_argument("--quick", action="store_true", help="smaller data")
    parser.add_argument("--times", type=int, default=3, help="runs of each script, each a process (default 3)")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--page", metavar="FILE", type=Path, default=PAGE, help=f"the page (default {PAGE.name})")
    asked = parser.parse_args()
    rows: list[Row] = []
    missing = []
    for script in asked.only:
        found = run(script, asked.times, quick=asked.quick)
        rows += found
        missing += [] if found else [script]
        # After each script, so that an interrupted run has written its figures.
        write_page(asked.page, rows)
        if asked.json:
            Path(asked.json).write_text(json.dumps([row.to_json() for row in rows], indent=2) + "\n")
    columns = ("script", "figure", "value", "reference_value", "ratio", "worst", "spread", "goal", "met")
    figures = [row.to_json() for row in rows]
    print(Table.from_dicts([{key: each[key] for key in columns} for each in figures], title=machine()))
    return 1 if missing else 0

if __name__ == "__main__":
    sys.exit(main())
