# SPDX-License-Identifier: Apache-2.0
"""Plans of the policies of a Raft log, as stories in `tests/promises/scenarios/raftlog/plan_*.txt`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from compactlib.raftlog import DropDead, LogPlan, LogPolicy, LogView, SeedPolicy, SegmentLimits
from compactlib.raftlog.policy import SegmentRef, SegmentStats, plan_for

SCENARIOS = Path(__file__).parents[1] / "scenarios" / "raftlog"
POLICIES: dict[str, Callable[..., LogPolicy]] = {"drop": DropDead, "seed": SeedPolicy}
SEGMENTS = re.compile(r"segments (\d+)(?:-(\d+))? \{(\d+),(\d+)\} +live (\d+) of (\d+), bytes (\d+) of (\d+)")


class Story:
    """The little language of the scenario files.

    `cap`, `segments` and `snapshot` describe the log; a line of segments after a plan begins a new log. `plan` prints
    the plan, `apply` prints it and continues with the resulting log.
    """

    def __init__(self) -> None:
        self.limits = SegmentLimits()
        self.segments: list[SegmentStats] = []
        self.snapshot: int | None = None
        self.planned = False

    def run(self, line: str) -> list[str] | None:
        """Carry out one line; the lines that a plan prints, or `None` for the others."""
        word, *rest = line.split()
        if word == "cap":
            values = _settings(rest)
            self.limits = SegmentLimits(max_entries=values["entries"], max_bytes=values["bytes"])
        elif word == "snapshot":
            self.snapshot = None if rest == ["none"] else int(rest[0])
        elif word == "segments":
            if self.planned:
                self.segments, self.planned = [], False
            self.segments.extend(_segments(line))
        else:
            assert word in ("plan", "apply"), line
            view = LogView(segments=tuple(self.segments), snapshot_index=self.snapshot, limits=self.limits)
            plan = plan_for(view, POLICIES[rest[0]](**_settings(rest[1:])))
            self.planned = True
            if word == "apply":
                self.segments = list(plan.forecast().segments)
            return told(plan)
        return None


def told(plan: LogPlan) -> list[str]:
    """Print a plan as in the scenarios; neighbours kept for the same reason share a line."""
    lines: list[str] = []
    for (action, reason), same in groupby(plan.to_dicts(), key=lambda row: (row["action"], row["reason"])):
        rows = list(same)
        if action == "keep":
            lines.append(f"keep {_span([number for row in rows for number in row['members']])}: {reason}")
            continue
        for row in rows:
            copies = f", copies {row['bytes_to_copy']:,}" if action != "drop" else ""
            lines.append(f"{action} {_span(row['members'])}: frees {row['bytes_freed']:,}{copies}")
    return [*lines, *([f"nothing: {plan.why}"] if plan.is_empty else [])]


def _span(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _settings(words: Sequence[str]) -> dict[str, Any]:
    return {name: float(value) if "." in value else int(value) for name, value in (word.split("=") for word in words)}


def _segments(line: str) -> list[SegmentStats]:
    """One line is one segment, or several alike that share the range evenly."""
    match = SEGMENTS.fullmatch(line)
    assert match, f"not understood: {line}"
    numbers = [int(group or match[1]) for group in match.groups()]
    start, end, first, last, live, entries, live_bytes, data_bytes = numbers
    width = (last - first + 1) // (end - start + 1)
    return [SegmentStats(ref=SegmentRef(number, first + step * width, first + step * width + width - 1),
                         entries=entries, data_bytes=data_bytes, live_entries=live, live_bytes=live_bytes)
            for step, number in enumerate(range(start, end + 1))]


def replay(text: str) -> str:
    """Return the scenario with the printed plans in place of the expected ones under `----`."""
    story, out, skipping = Story(), [], False
    for line in text.splitlines():
        skipping = skipping and bool(line)
        if skipping:
            continue
        out.append(line)
        printed = None if not line or line.startswith("#") else story.run(line)
        if printed is not None:
            out.extend(["----", *printed])
            skipping = True
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("plan_*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# "), "a scenario begins with a line that describes it"
    assert "----\n" in text
    assert replay(text) == text
