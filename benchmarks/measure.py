# SPDX-License-Identifier: Apache-2.0
"""Measuring ours and a reference in turn, and reporting medians; shared by the scripts in this folder."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from compactlib.report import Table


@attrs.frozen
class Goal:
    """The range of a ratio, both ends included."""

    least: float
    most: float

    @classmethod
    def read(cls, text: str) -> Goal | None:
        """The goal that a figure names: `">= 0.5"`, `"<= 2 at 9 tables"`, `"0.8 .. 1.25"`; `None` if it has none."""
        if found := re.match(r"([0-9.]+) (?:\.\.|to) ([0-9.]+)$", text):
            return cls(float(found[1]), float(found[2]))
        found = re.match(r"([<>]?)=? *([0-9.]+)(?![0-9.]| *(?:MiB|more))", text)
        if found is None:
            return None
        bound = float(found[2])
        return cls(-math.inf if found[1] == "<" else bound, math.inf if found[1] == ">" else bound)

    def beyond(self, ratio: float) -> float:
        """How far the ratio lies outside; 0 or less is inside."""
        return max(self.least - ratio, ratio - self.most)


@attrs.frozen(kw_only=True)
class Figure:
    """One comparison. `ratio` is the median of the ratios of the pairs of runs, ours over the reference.

    Attributes:
        figure: a stable name, so that releases can be compared.
        unit: of both values.
        values: ours, one a run.
        reference: what ours is compared with.
        reference_values: the reference's, one a run.
        goal: the range of the ratio.
    """

    figure: str
    unit: str
    values: tuple[float, ...]
    reference: str
    reference_values: tuple[float, ...]
    goal: str

    @property
    def ratio(self) -> float:
        """Median of the pairwise ratios."""
        return statistics.median(a / b for a, b in zip(self.values, self.reference_values, strict=True))

    def to_json(self) -> dict[str, object]:
        """The shape that `design.md` asks for."""
        return {"figure": self.figure, "value": statistics.median(self.values), "unit": self.unit,
                "reference": self.reference, "reference_value": statistics.median(self.reference_values),
                "ratio": self.ratio, "goal": self.goal, "runs": len(self.values)}

    def row(self) -> dict[str, object]:
        """One row of the printed table: medians with minimum and maximum."""
        return {"figure": self.figure, "ours": _spread(self.values), "reference": self.reference,
                "its value": _spread(self.reference_values), "unit": self.unit, "ratio": round(self.ratio, 3),
                "goal": self.goal}


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.4g} ({min(values):,.4g}..{max(values):,.4g})"


def alternate(runs: int, ours: Callable[[], float], reference: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Run both in turn, A B A B …, after one warm-up of each; returns their values."""
    ours()
    reference()
    pairs = [(ours(), reference()) for _ in range(runs)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def report(figures: Sequence[Figure], json_path: str | None) -> None:
    """Print the table, and write the JSON if a path is given."""
    print(Table.from_dicts([figure.row() for figure in figures], title="medians (minimum..maximum)"))
    if json_path:
        Path(json_path).write_text(json.dumps([figure.to_json() for figure in figures], indent=2) + "\n")
