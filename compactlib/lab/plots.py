"""One plot for each question that a replay answers. Needs the extra `lab` (matplotlib).

Each function gives a `matplotlib.figure.Figure`, which a notebook shows after `%matplotlib inline`;
`save(figure, path)` writes PNG or SVG, as the name ends. No window is opened and no global state of pyplot is used.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.files import Files, LocalFiles, write_durably
from compactlib.lab.blob_report import ReplayReport
from compactlib.lab.experiments import Comparison
from compactlib.lab.measures import AMPLIFICATIONS

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError:
    raise MissingDependency(package="matplotlib", extra="lab", purpose="a plot") from None

TITLES: Mapping[str, str] = {
    "write_amplification": "bytes written for each byte of the user",
    "space_amplification": "bytes used for each live byte",
    "copied_per_reclaimed": "bytes copied for each byte reclaimed",
    "read_cost": "bytes read by compactions for each byte of the user",
    "seconds_to_reclaim": "seconds from death to reclaim",
    "peak_fill": "the most that was used, as a part of the capacity",
}
"""What each figure of `AMPLIFICATIONS` says."""
_FORMATS = ("png", "svg")


def over_time(reports: Sequence[ReplayReport], figure: str = "write_amplification") -> Figure:
    """How a figure went, interval by interval: one line a report.

    Raises:
        InvalidInput: there is no such figure.
    """
    _check(figure)
    drawn, axes = _empty(TITLES[figure])
    for report in reports:
        points = [(each.end - report.intervals[0].start, getattr(each, figure)) for each in report.intervals]
        axes.plot(*zip(*points, strict=True), label=report.policy.split("(")[0])
    axes.set_xlabel("seconds since the beginning")
    axes.legend()
    return drawn


def side_by_side(comparison: Comparison, figure: str = "write_amplification") -> Figure:
    """What each policy came to on each workload: groups of bars.

    Raises:
        InvalidInput: there is no such figure.
    """
    _check(figure)
    drawn, axes = _empty(TITLES[figure])
    rows = comparison.to_dicts()
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    width = 0.8 / max(len(policies), 1)
    for place, policy in enumerate(policies):
        heights = []
        for workload in workloads:
            found = [row[figure] for row in rows if (row["policy"], row["workload"]) == (policy, workload)]
            known = [each for each in found if each is not None]
            heights.append(sum(known) / len(known) if known else 0.0)
        axes.bar([at + place * width for at in range(len(workloads))], heights, width, label=policy)
    axes.set_xticks([at + 0.4 - width / 2 for at in range(len(workloads))], workloads)
    axes.legend()
    return drawn


def along(comparison: Comparison, parameter: str, figure: str = "write_amplification") -> Figure:
    """How a figure depends on a setting that was swept: one line a workload.

    Raises:
        InvalidInput: there is no such figure, or an experiment without that setting.
    """
    _check(figure)
    drawn, axes = _empty(TITLES[figure])
    rows = comparison.to_dicts()
    if any(parameter not in row for row in rows):
        raise InvalidInput(f"an experiment has no setting {parameter!r}; make them with sweep()")
    for workload in dict.fromkeys(row["workload"] for row in rows):
        points = sorted((row[parameter], row[figure]) for row in rows
                        if row["workload"] == workload and row[figure] is not None)
        axes.plot(*zip(*points, strict=True), marker="o", label=workload)
    axes.set_xlabel(parameter)
    axes.legend()
    return drawn


def trade_off(comparison: Comparison, x: str = "space_amplification", y: str = "write_amplification") -> Figure:
    """What one figure costs in another: a point an experiment.

    Raises:
        InvalidInput: there is no such figure.
    """
    _check(x)
    _check(y)
    drawn, axes = _empty(TITLES[y])
    for policy in dict.fromkeys(row["policy"] for row in comparison.to_dicts()):
        points = [(row[x], row[y]) for row in comparison.to_dicts()
                  if row["policy"] == policy and None not in (row[x], row[y])]
        if points:
            axes.scatter(*zip(*points, strict=True), label=policy)
    axes.set_xlabel(TITLES[x])
    axes.legend()
    return drawn


def save(figure: Figure, path: str | os.PathLike[str], *, files: Files | None = None) -> str:
    """Write a plot as PNG or SVG, as the name ends; gives the path.

    Raises:
        InvalidInput: the name ends in something else.
        StorageError: the disk refused.
    """
    name = os.fspath(path)
    ending = name.rsplit(".", 1)[-1].lower()
    if ending not in _FORMATS:
        raise InvalidInput(f"{name!r} ends in .{ending}; plots are written as {' or '.join(_FORMATS)}")
    content = io.BytesIO()
    figure.savefig(content, format=ending)
    write_durably(LocalFiles() if files is None else files, name, [content.getvalue()])
    return name


def _empty(title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_ylabel(title)
    return figure, axes


def _check(figure: str) -> None:
    if figure not in AMPLIFICATIONS:
        raise InvalidInput(f"there is no figure {figure!r}; take one of {', '.join(AMPLIFICATIONS)}")
