# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks has every script that can be run, and no other; its table is written by a command."""

import importlib
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_PAGE = _ROOT / "docs" / "benchmarks.md"

def test_the_page_of_benchmarks_names_every_script() -> None:
    scripts = {path.name for path in (_ROOT / "benchmarks").glob("*.py")
               if '__name__ == "__main__"' in path.read_text()}
    assert set(re.findall(r"^\| `(\w+\.py)`", _PAGE.read_text(), re.MULTILINE)) == scripts

def test_a_run_replaces_the_rows_of_its_script_alone(tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_ROOT / "benchmarks")
    bench = importlib.import_module("bench")

    def row(script: str, goal: str, *ratios: float) -> object:
        return bench.Row(script, [{"figure": "f", "unit": "s", "value": ratio, "reference": "r", "reference_value": 1.0,
                                   "ratio": ratio, "goal": goal} for ratio in ratios], "2026-11-23")

    page = tmp_path / "page.md"
    page.write_text(_PAGE.read_text())
    bench.write_page(page, [row("new", ">= 0.5", 0.4, 0.7, 0.6), row("old", "<= 1", 2.0)])
    bench.write_page(page, [row("old", "<= 1", 0.5, 0.25, 1.5), row("old", "printed", 3.0)])
    text = page.read_text()
    assert "| new | `f` | 0.6 s | 0.6 | >= 0.5 | 2026-11-23 |\n" in text
    assert [line for line in text.splitlines() if line.startswith("| old |")] == [
        "| old | `f` | 0.5 s | 0.5 | <= 1 | 2026-11-23 |"]
    assert bench.machine() in text
    bench.write_page(page, [row("new", ">= 0.5", 0.4)])
    assert "| >= 0.5, **missed** |" in page.read_text()
    after = "\n\n".join(_PAGE.read_text().split("\n\n")[-2:])
    assert page.read_text().endswith(after)

def test_the_page_has_the_worst_of_a_unit_and_goal_and_every_missed_goal(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_ROOT / "benchmarks")
    bench = importlib.import_module("bench")
    page = tmp_path / "page.md"
    page.write_text(_PAGE.read_text())

    def lines(*ratios: float) -> list[str]:
        bench.write_page(page, [bench.Row("new", [{"figure": f"f{ratio}", "unit": "s", "value": ratio, "reference": "r",
                                                   "reference_value": 1.0, "ratio": ratio, "goal": "<= 1"}],
                                          "2026-11-23, 1 run") for ratio in ratios])
        return re.findall(r"^\| new \| `f([0-9.]+)` .* 2026-11-23 \|$", page.read_text(), re.MULTILINE)

    assert lines(0.5, 0.75, 0.25) == ["0.75"]
    assert lines(0.5, 1.5, 2.0) == ["1.5", "2.0"]
