# SPDX-License-Identifier: Apache-2.0
"""Compare a benchmark of two checkouts: its script in each runs in turn, on that checkout's own code.

    python benchmarks/compare.py SCRIPT BASE [--pairs N] [--json FILE] [-- ARGUMENTS OF THE SCRIPT]
    python benchmarks/compare.py raftlog_log ../base --pairs 5 -- --quick

BASE is the other checkout (`git worktree add --detach ../base COMMIT`). Both run under this interpreter, A B A B …,
each in a process of its own. The table has a row for each figure that both write under the same name:

- `here / base`: the median, over the pairs, of the figure's value here divided by its value at BASE.
  The unit shows whether more is better.
- `of ratios`: the same for the figure's ratio to its reference. It cancels what slows a whole run, such as a busy disk.

The reference runs in both checkouts; `reference` shows how far its own values differ, which is the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compactlib.report import Table

HERE = Path(__file__).parent.parent
Figures = dict[str, dict[str, float | str]]
"""The figures that a script writes, by name."""


def run(checkout: Path, script: str, arguments: Sequence[str]) -> Figures:
    """Run a script of a checkout on that checkout's code; return its figures by name."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    found = subprocess.run([sys.executable, "-c", "import compactlib; print(compactlib.__file__)"], cwd=checkout,
                           env=environment, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_relative_to(checkout):
        raise SystemExit(f"in {checkout} Python imports {found}; that is another checkout's library")
    with tempfile.TemporaryDirectory(prefix="compactlib-compare-") as folder:
        written = Path(folder) / "figures.json"
        ended = subprocess.run([sys.executable, f"benchmarks/{script}.py", "--json", str(written), *arguments],
                               cwd=checkout, env=environment, stdout=subprocess.DEVNULL, check=False)
        if not written.exists():
            raise SystemExit(f"{checkout}/benchmarks/{script}.py ended with {ended.returncode} and wrote no figures")
        return {figure["figure"]: figure for figure in json.loads(written.read_text())}


def compared(pairs: Sequence[tuple[Figures, Figures]]) -> list[dict[str, object]]:
    """Return a row for each figure that every run wrote; a pair is a value here and a value at BASE."""
    names = set.intersection(*(set(figures) for pair in pairs for figures in pair))
    rows: list[dict[str, object]] = []
    for name in (name for name in pairs[0][0] if name in names):
        def parts(field: str, name: str = name) -> list[float]:
            return [float(here[name][field]) / float(base[name][field]) for here, base in pairs]
        values, ratios = parts("value"), parts("ratio")
        rows.append({"figure": name, "unit": pairs[0][0][name]["unit"],
                     "here / base": round(statistics.median(values), 3),
                     "of ratios": round(statistics.median(ratios), 3),
                     "least": round(min(ratios), 3), "most": round(max(ratios), 3),
                     "reference": round(statistics.median(parts("reference_value")), 3), "pairs": len(pairs)})
    return rows


def main() -> int:
    """Run both checkouts in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", help="a script of benchmarks/, without .py")
    parser.add_argument("base", type=Path, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=3, help="runs in each checkout (default 3)")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    asked, arguments = parser.parse_args(given[:end]), given[end + 1:]
    base, pairs = asked.base.resolve(), []
    for number in range(asked.pairs):
        pairs.append((run(HERE, asked.script, arguments), run(base, asked.script, arguments)))
        print(f"pair {number + 1} of {asked.pairs}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    rows = compared(pairs)
    print(Table.from_dicts(rows, title=f"{asked.script}: {HERE} beside {base}"))
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
