# SPDX-License-Identifier: Apache-2.0
"""Finds settings: tries many on the first half of a workload, and measures the best on the second.

The first half alone would flatter: of many settings some fit it by chance. On the second half only two are replayed,
the chosen ones and today's, each in a store that the first half has filled. Its stretches, drawn again with replacement
(the bootstrap of B. Efron, 1979), say how far the figures vary.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

import attrs

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.lab.results.experiments import Comparison, Experiment, run_experiments
from compactlib.lab.results.measures import Measures, together
from compactlib.lab.results.reports import Report
from compactlib.lab.traces.operations import Operations
from compactlib.lab.traces.workloads import Workload
from compactlib.report import Printed
from compactlib.rewrite import Executor
from compactlib.runtime.observe import Observer

HALF = 10
"""Stretches of a half of the workload."""
_DRAWS = 1_000


@attrs.frozen
class Stretches:
    """A workload from its beginning, in pieces of one length; each becomes an interval of a report.

    Attributes:
        of: the workload.
        length: operations of a stretch.
        count: how many stretches there are at most.
    """

    of: Workload
    length: int
    count: int

    @property
    def name(self) -> str:
        """That of the whole."""
        return self.of.name

    @property
    def operations(self) -> int:
        """0, so that a replay cuts its report where the pieces end."""
        return 0

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`. Memory: one stretch."""
        return islice(self._all(seed), self.count)

    def _all(self, seed: int) -> Iterator[Operations]:
        parts: list[Operations] = []
        missing = self.length
        for piece in self.of.pieces(seed):
            done = 0
            while done < len(piece):
                parts.append(_cut(piece, done, min(done + missing, len(piece))))
                done += len(parts[-1])
                missing -= len(parts[-1])
                if not missing:
                    yield _joined(parts)
                    parts, missing = [], self.length
        if parts:
            yield _joined(parts)

    def __str__(self) -> str:
        return f"{self.of}, the first {self.length * self.count:,} operations"


def _cut(piece: Operations, begin: int, end: int) -> Operations:
    columns = {field.name: getattr(piece, field.name) for field in attrs.fields(Operations)}
    cut: dict[str, Any] = {name: value if isinstance(value, int) else value[begin:end]
                           for name, value in columns.items()}
    return Operations(**cut)


def _joined(parts: Sequence[Operations]) -> Operations:
    def column(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], int) and all(value == values[0] for value in values):
            return values[0]
        joined = array("q")
        for part, value in zip(parts, values, strict=True):
            joined.extend([value] * len(part) if isinstance(value, int) else list(value))
        return joined

    return Operations(kinds=b"".join(part.kinds for part in parts), **{
        field.name: column(field.name) for field in attrs.fields(Operations) if field.name != "kinds"})


@attrs.frozen(kw_only=True)
class Expected:
    """One figure of the second half; what is unknown is `None`.

    Attributes:
        today: with today's settings.
        expected: with the chosen ones.
        low: above this with 97.5 of 100 draws of the stretches.
        high: below this with as many.
        saves_low: what the chosen settings save at least, by as many draws; both are drawn alike.
        limit: the most that was allowed; `None`: any.
    """

    today: float | None
    expected: float | None
    low: float | None
    high: float | None
    saves_low: float | None
    limit: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the limit is kept on the second half, too."""
        return self.limit is None or self.expected is None or self.expected <= self.limit


@attrs.frozen(kw_only=True, repr=False)
class Tuning(Printed):
    """What was found. Printed, it says what to set, and what that brings.

    Attributes:
        chosen: the experiment of the best settings; its labels and its policy say what to set.
        today: that of today's.
        least: the figure that was to be small.
        figures: of the second half, by name: `least`, what has a limit, and the others.
        first: all that was tried, as it was replayed: over the first half.
    """

    chosen: Experiment
    today: Experiment
    least: str
    figures: Mapping[str, Expected]
    first: Comparison

    @property
    def is_worth_it(self) -> bool:
        """Whether the second half confirms the choice: it saves something, and every limit is kept."""
        saved = self.figures[self.least].saves_low
        return saved is not None and saved > 0 and not self.broken

    @property
    def broken(self) -> tuple[str, ...]:
        """The figures whose limits the chosen settings kept on the first half, and not on the second."""
        return tuple(name for name, each in self.figures.items() if not each.is_kept)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a figure."""
        return [{"figure": name, **attrs.asdict(each, filter=lambda field, _: field.name != "saves_low")}
                for name, each in self.figures.items()]

    def _summary(self) -> str:
        found = self.figures[self.least]
        labels = ", ".join(f"{name}={value}" for name, value in self.chosen.labels.items())
        setting = self.chosen.settings.name_of(self.chosen.policy) + (f" with {labels}" if labels else "")
        text = (f"{setting}: expected {self.least.replace('_', ' ')} {_short(found.expected)} ({_short(found.low)}.."
                f"{_short(found.high)}), today {_short(found.today)}; chosen among {len(self.first.experiments)} on "
                f"the first half, measured on the second")
        if self.broken:
            return f"{text}; keep today's settings: the second half breaks the limit of {', '.join(self.broken)}"
        return text if self.is_worth_it else f"{text}; keep today's settings: nothing is saved for certain"


def tune(experiments: Iterable[Experiment], *, today: Experiment, least: str = "write_amplification",
         limits: Mapping[str, float] | None = None, tries: int | None = None, rng: Random | None = None,
         folder: str | os.PathLike[str] | None = None, executor: Executor | None = None,
         observer: Observer | None = None, skip: float = 0.5) -> Tuning:
    """The experiment with the least of a figure that keeps the limits. Replays each over half of the workload.

    Args:
        experiments: what to try, such as `grid`, `sweep` and `compare` give; all of one workload and seed.
        today: the settings of today, with the same workload.
        least: the figure, or count, that is to be small.
        limits: the most that other figures, or counts, may come to: `space_amplification`, `peak_used_bytes`, and for
            pauses `most_moved_bytes`, the most that one compaction reads and writes. `refused` is 0 if nothing is said.
        tries: how many to try, drawn at random; default all.
        rng: draws them; default one of seed 0.
        folder: see `run_experiments`.
        executor: see `run_experiments`: one of processes takes all cores, one of Spark a cluster.
        observer: notified of progress, in experiments.
        skip: which first part of the first half is not measured, as the store still fills up.

    Raises:
        InvalidInput: no experiment keeps the limits; or, before anything of the search, a figure is unknown, a limit is
            no number, the workloads differ, or the workload is too short or has no pieces.
        CompactlibError: what today's settings or the chosen ones ended in.
    """
    listed, workload = list(experiments), today.workload
    if any((each.workload, each.seed) != (workload, today.seed) for each in listed):
        raise InvalidInput("the experiments and today's are of the same workload and the same seed; some are not")
    if tries is not None:
        if tries < 1:
            raise InvalidInput(f"tries is {tries}; give at least 1")
        listed = (rng or Random(0)).sample(listed, min(tries, len(listed)))
    if today not in listed:
        listed.append(today)
    if not hasattr(workload, "pieces"):
        raise InvalidInput(f"{workload} is not made of operations; tuning cuts a workload in two")
    operations = sum(map(len, workload.pieces(today.seed)))
    length = operations // (2 * HALF)
    if not length:
        raise InvalidInput(f"the workload has {operations} operation(s); give at least {2 * HALF}")
    for name, limit in (limits or {}).items():
        if math.isnan(limit):
            raise InvalidInput(f"the limit of {name} is {limit!r}; give the most that it may come to")

    allowed = {"refused": 0.0, **(limits or {})}
    # What cannot be asked for is told before the search, which may take long.
    [probe] = run_experiments([attrs.evolve(today, workload=Stretches(workload, length, 1))]).reports
    for name in (least, *allowed):
        _value(probe.steady(skip), name)

    def run(some: Sequence[Experiment], stretches: int) -> Comparison:
        part = Stretches(workload, length, stretches)
        return run_experiments([attrs.evolve(each, workload=part) for each in some], folder, executor=executor,
                               observer=observer, skip=skip)

    first = run(listed, HALF)
    chosen = listed[_best(first, least, allowed)]
    second = run([chosen] if chosen == today else [chosen, today], 2 * HALF)
    if second.failures:
        raise second.failures[0][1]
    names = dict.fromkeys([least, *allowed, *second.figures])
    after, before = _second_half(second.reports[0]), _second_half(second.reports[-1])
    return Tuning(chosen=chosen, today=today, least=least, first=first,
                  figures={name: _expected(name, after, before, allowed.get(name)) for name in names})


def _best(first: Comparison, least: str, limits: Mapping[str, float]) -> int:
    measured = {number: outcome.steady(first.skip) for number, outcome in enumerate(first.outcomes)
                if not isinstance(outcome, CompactlibError)}
    for name, limit in limits.items():
        kept = {number: found for number, found in measured.items() if not _value(found, name) > limit}
        if not kept:
            lowest = min(_value(found, name) for found in measured.values())
            raise InvalidInput(f"none of the {len(measured)} experiments left keeps {name} at most {limit}: the least "
                               f"is {lowest:.6g}; try others, or allow more")
        measured = kept
    known = [(value, number) for number, found in measured.items() if not math.isnan(value := _value(found, least))]
    if not known:
        raise InvalidInput(f"no experiment knows its {least}; give a longer workload, or another figure")
    return min(known)[1]


def _second_half(report: Report) -> Sequence[Measures]:
    if len(report.intervals) != 2 * HALF:
        raise InvalidInput(f"the report of {report.workload} has {len(report.intervals)} intervals, not one a piece of "
                           f"the workload; a setup cuts it so if the workload's `operations` is 0")
    return report.intervals[HALF:]


def _value(found: Measures, name: str) -> float:
    known = (*found.FIGURES, *(field.name for field in attrs.fields(type(found)) if not field.metadata.get("hidden")))
    if name not in known:
        raise InvalidInput(f"there is no figure {name!r}; there are {', '.join(known)}")
    return float(getattr(found, name))


def _expected(name: str, after: Sequence[Measures], before: Sequence[Measures], limit: float | None) -> Expected:
    rng, drawn, saved = Random(0), [], []
    for _ in range(_DRAWS):
        places = rng.choices(range(HALF), k=HALF)
        new, old = (_value(together([each[place] for place in places]), name) for each in (after, before))
        drawn.append(new)
        saved.append(old - new)
    return Expected(today=_known(_value(together(before), name)), expected=_known(_value(together(after), name)),
                    low=_quantile(drawn, 0.025), high=_quantile(drawn, 0.975), saves_low=_quantile(saved, 0.025),
                    limit=limit)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _quantile(values: Iterable[float], part: float) -> float | None:
    known = sorted(value for value in values if not math.isnan(value))
    return known[round(part * (len(known) - 1))] if known else None


def _short(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
