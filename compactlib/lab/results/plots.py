# SPDX-License-Identifier: Apache-2.0
"""One plot for each question that a replay answers. Needs the extra `lab` (matplotlib).

Each function gives a `matplotlib.figure.Figure`, which a notebook shows after `%matplotlib inline`;
`save(figure, path)` writes PNG or SVG, as the name ends. No window is opened and no global state of pyplot is used.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.files.disk import Files, LocalFiles, write_durably
from compactlib.lab.results.experiments import Comparison
from compactlib.lab.results.reports import Report
from compactlib.report import Setting

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError:
    raise MissingDependency(package="matplotlib", extra="lab", purpose="a plot") from None

_FORMATS = ("png", "svg")


def over_time(reports: Sequence[Report], figure: str = "write_amplification") -> Figure:
    """How a figure went, interval by interval: one line a report.

    Raises:
        InvalidInput: one of the reports has no such figure, or there is no report.
    """
    if not reports:
        raise InvalidInput("no report is given; there is nothing to draw")
    titles = [_title(figure, report.intervals[0].FIGURES) for report in reports]
    drawn, axes = _empty(titles[0])
    for report in reports:
        points = [(each.end - report.intervals[0].start, getattr(each, figure)) for each in report.intervals]
        axes.plot(*zip(*points, strict=True), label=report.policy.split("(")[0])
    axes.set_xlabel("seconds since the beginning")
    axes.legend()
    return drawn


def side_by_side(comparison: Comparison, figure: str = "write_amplification") -> Figure:
    """What each policy came to on each workload: groups of bars, each the mean of its seeds.

    Raises:
        InvalidInput: there is no such figure.
    """
    drawn, axes = _empty(_title(figure, comparison.figures))
    rows = comparison.to_dicts()
    of_policies, of_workloads = _told_apart(comparison, rows)
    policies, workloads = list(dict.fromkeys(of_policies)), list(dict.fromkeys(of_workloads))
    width = 0.8 / max(len(policies), 1)
    for place, policy in enumerate(policies):
        heights = []
        for workload in workloads:
            found = [row.get(figure) for row, *of in zip(rows, of_policies, of_workloads, strict=True)
                     if of == [policy, workload]]
            heights.append(_mean(found))
        places = [at + place * width for at in range(len(workloads))]
        axes.bar(places, heights, width, label=policy)
        for at, height in zip(places, heights, strict=True):
            if math.isnan(height):
                # Else it would look like nothing at all.
                axes.annotate("no value", (at, 0), ha="center", va="bottom", rotation=90, color="gray")
    axes.set_xticks([at + 0.4 - width / 2 for at in range(len(workloads))], workloads)
    axes.legend()
    return drawn


def along(comparison: Comparison, parameter: str, figure: str = "write_amplification", *,
          held: Mapping[str, Setting] | None = None) -> Figure:
    """How a figure depends on a setting that was swept: one line a workload.

    Args:
        comparison: what was run.
        parameter: the setting.
        figure: what depends on it.
        held: by column, which value is drawn of whatever else the experiments differ in.

    Raises:
        InvalidInput: there is no such figure, an experiment without that setting, or what else differs is not held.
    """
    drawn, axes = _empty(_title(figure, comparison.figures))
    rows = _rows_of(comparison, (parameter, "workload"), held)
    are_numbers = all(isinstance(row[parameter], int | float) for row in rows)
    for workload in dict.fromkeys(row["workload"] for row in rows):
        points = sorted(((row[parameter], row[figure]) for row in rows
                         if row["workload"] == workload and row.get(figure) is not None),
                        key=lambda point: (*_rank(point[0]), point[1]))
        if not are_numbers:
            # Each has a place of its own, in this order.
            points = [(str(at), value) for at, value in points]
        axes.plot([at for at, _ in points], [value for _, value in points], marker="o", label=workload)
    axes.set_xlabel(parameter)
    axes.legend()
    return drawn


def trade_off(comparison: Comparison, x: str = "space_amplification", y: str = "write_amplification") -> Figure:
    """What one figure costs in another: a point an experiment.

    Raises:
        InvalidInput: there is no such figure.
    """
    drawn, axes = _empty(_title(y, comparison.figures))
    for policy in dict.fromkeys(row["policy"] for row in comparison.to_dicts()):
        points = [(row[x], row[y]) for row in comparison.to_dicts()
                  if row["policy"] == policy and None not in (row.get(x), row.get(y))]
        if points:
            axes.scatter(*zip(*points, strict=True), label=policy)
    axes.set_xlabel(_title(x, comparison.figures))
    axes.legend()
    return drawn


def heat_map(comparison: Comparison, x: str, y: str, figure: str = "write_amplification", *,
             held: Mapping[str, Setting] | None = None) -> Figure:
    """How a figure depends on two settings that were swept together: a field for each pair, the mean of its seeds.

    Args:
        comparison: what was run.
        x: the one setting.
        y: the other.
        figure: what depends on them.
        held: see `along`.

    Raises:
        InvalidInput: as `along`.
    """
    drawn, axes = _empty(y)
    title = _title(figure, comparison.figures)
    rows = _rows_of(comparison, (x, y), held)
    columns, lines = (sorted({row[name] for row in rows}, key=_rank) for name in (x, y))
    fields = [[_mean([row.get(figure) for row in rows if (row[x], row[y]) == (column, line)]) for column in columns]
              for line in lines]
    image = axes.imshow(fields, aspect="auto", origin="lower")
    axes.set_xticks(range(len(columns)), [str(each) for each in columns])
    axes.set_yticks(range(len(lines)), [str(each) for each in lines])
    for at, line in enumerate(fields):
        for place, value in enumerate(line):
            axes.text(place, at, "no value" if math.isnan(value) else f"{value:.3g}", ha="center", va="center",
                      color="gray" if math.isnan(value) else "white")
    axes.set_xlabel(x)
    drawn.colorbar(image, ax=axes, label=title)
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


def _told_apart(comparison: Comparison, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """A name for each row's policy, and one for its workload; the same only for what differs in nothing but the seed.
    """
    policies = _whole([str(each.policy) for each in comparison.experiments], [row["settings"] for row in rows])
    workloads = _whole([str(each.workload) for each in comparison.experiments], [row["of"] for row in rows])
    labels = [", ".join(f"{name}={value}" for name, value in each.labels.items()) for each in comparison.experiments]
    pairs = list(zip(policies, workloads, strict=True))
    if len(set(pairs)) < len(set(zip(pairs, labels, strict=True))):
        # Setups, for one.
        policies = [f"{policy}, {label}" if label else policy for policy, label in zip(policies, labels, strict=True)]
    return (_short([row["policy"] for row in rows], policies), _short([row["workload"] for row in rows], workloads))


def _whole(values: Sequence[str], told: Sequence[str | None]) -> list[str]:
    """What a report says of each value; the value itself where none has come of it."""
    known = {value: text for value, text in zip(values, told, strict=True) if text is not None}
    return [known.get(value, value) for value in values]


def _short(names: Sequence[str], whole: Sequence[str]) -> list[str]:
    """The names, but the whole where one name stands for several."""
    meant: dict[str, set[str]] = {}
    for name, each in zip(names, whole, strict=True):
        meant.setdefault(name, set()).add(each)
    return [name if len(meant[name]) == 1 else each for name, each in zip(names, whole, strict=True)]


def _title(figure: str, known: Mapping[str, str]) -> str:
    """What a figure says, with its unit."""
    if figure not in known:
        raise InvalidInput(f"there is no figure {figure!r}; take one of {', '.join(known)}")
    return known[figure]


def _rows_of(comparison: Comparison, place: Sequence[str], held: Mapping[str, Setting] | None
             ) -> list[dict[str, Any]]:
    """The experiments with the values that are held; those with one place in the plot differ in the seed alone."""
    rows = comparison.to_dicts()
    labels = dict.fromkeys(name for each in comparison.experiments for name in each.labels)
    for name in (*place, *(held or ())):
        if any(name not in row for row in rows):
            raise InvalidInput(f"an experiment has no setting {name!r}; make them with sweep()")
    rows = [row for row in rows if all(row[name] == value for name, value in (held or {}).items())]
    for name in (*labels, "workload", "policy", "of", "settings"):
        found: dict[tuple[Any, ...], set[Any]] = {}
        for row in rows:
            found.setdefault(tuple(row[each] for each in place), set()).add(row.get(name))
        if values := next((known for each in found.values() if len(known := each - {None}) > 1), None):
            given = sorted(map(repr, values))
            raise InvalidInput(f"the experiments differ in {name!r}, too: {', '.join(given)}; say of which the plot "
                               f"is: held={{{name!r}: {given[0]}}}")
    if not rows:
        raise InvalidInput(f"no experiment has {held}; there is nothing to draw")
    return rows


def _rank(value: Setting) -> tuple[int, Setting]:
    """Settings in order, whatever their types: numbers, text, none."""
    return (0, value) if isinstance(value, int | float) else (1, value) if isinstance(value, str) else (2, 0)


def _mean(values: Sequence[float | None]) -> float:
    """The mean of those that are known; NaN of none, which leaves a gap."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan
