# SPDX-License-Identifier: Apache-2.0
"""Replay policies x workloads x models x seeds, here or in other processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors import portable_error
from compactlib.lab.report import Measures, Report
from compactlib.lab.simulation import Model, replay
from compactlib.lab.workloads import Workload
from compactlib.observer import Observer, Observers
from compactlib.report import Printed

MAX_EXPERIMENTS = 10_000
"""The largest number of replays in one comparison."""

Mapper: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""A function like the builtin `map`."""


@attrs.frozen(kw_only=True)
class Experiment:
    """A policy on a workload in a model; a picklable value if these are.

    Attributes:
        labels: what distinguishes it in a table.
        policy: the policy.
        workload: the operations.
        model: the store.
        seed: the seed of the random draws of workload and model.
    """

    labels: Mapping[str, str]
    policy: Any
    workload: Workload
    model: Model
    seed: int

    def run(self) -> Report | CompactlibError:
        """Return the report of the replay, or its error; that of a policy's code as a `TaskFailed`."""
        try:
            return replay(self.workload, self.policy, self.model, seed=self.seed)
        except Exception as error:  # of the policy's code
            return portable_error(", ".join(self.labels.values()), error)


@attrs.frozen(repr=False)
class Comparison(Printed):
    """The results of a comparison, in the order of its replays.

    Attributes:
        experiments: the replays.
        outcomes: the report or error of each replay.
        skip: the first part of each replay, 0 to 1, that the table leaves out because the store was filling up.
    """

    experiments: tuple[Experiment, ...]
    outcomes: tuple[Report | CompactlibError, ...]
    skip: float = 0.5

    @property
    def reports(self) -> tuple[Report, ...]:
        """The reports of the replays that succeeded."""
        return tuple(each for each in self.outcomes if isinstance(each, Report))

    @property
    def failures(self) -> tuple[CompactlibError, ...]:
        """The errors of the replays that failed."""
        return tuple(each for each in self.outcomes if isinstance(each, CompactlibError))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary a replay, all with the same keys: its labels, and the figures of its steady part.

        An unknown figure is `None`. If any replay failed, each dictionary has `error`, `None` for a success.
        """
        steady = [each.steady(self.skip) if isinstance(each, Report) else None for each in self.outcomes]
        figures = [{} if each is None else each.figures() for each in steady]
        known = [name for name in Measures.FIGURES if any(each.get(name) is not None for each in figures)]
        rows: list[dict[str, Any]] = []
        for experiment, outcome, counts, own in zip(self.experiments, self.outcomes, steady, figures, strict=True):
            row: dict[str, Any] = {**experiment.labels, "seed": experiment.seed,
                                   **{name: own.get(name) for name in known}}
            for name in ("compactions", "refused"):
                row[name] = None if counts is None else getattr(counts, name)
            if self.failures:
                row["error"] = str(outcome) if isinstance(outcome, CompactlibError) else None
            rows.append(row)
        return rows

    def _summary(self) -> str:
        failed = f"; {len(self.failures)} failed" if self.failures else ""
        return f"{len(self.experiments)} experiments, the first {self.skip:.0%} of each left out{failed}"


def compare(policies: Iterable[Any] | Mapping[str, Any], workloads: Iterable[Workload] | Mapping[str, Workload],
            models: Model | Mapping[str, Model], *, seeds: Sequence[int] = (0,), skip: float = 0.5,
            mapper: Mapper = map, observer: Observer | None = None) -> Comparison:
    """Replay every workload against every policy in every model.

    An error of one replay stops no other. Equal arguments give equal reports, wherever they run.

    Args:
        policies: the policies. Tables show the keys of a mapping, otherwise the policies' names.
        workloads: the workloads; likewise.
        models: the store; several as a mapping, whose keys become the column `model`.
        seeds: the seeds of the random draws of workloads and models.
        skip: the first part of each replay, 0 to 1, that the table leaves out because the store was filling up.
        mapper: runs the replays, as the builtin `map` does here, one after the other. On all cores: the `map` of a
            `concurrent.futures.ProcessPoolExecutor`; policies are then defined in a module.
        observer: notified of progress, in experiments.

    Raises:
        InvalidInput: there are more than `MAX_EXPERIMENTS`.
        CompactlibError: all replays failed; the error of the first is raised.
    """
    combinations = list(itertools.product(
        _named(workloads), models.items() if isinstance(models, Mapping) else [("", models)], _named(policies), seeds))
    if len(combinations) > MAX_EXPERIMENTS:
        raise InvalidInput(f"{len(combinations)} replays; compare at most {MAX_EXPERIMENTS} at once")
    experiments = tuple(
        Experiment(labels={"policy": called, "workload": load, **({"model": name} if name else {})},
                   policy=policy, workload=workload, model=model, seed=seed)
        for (load, workload), (name, model), (called, policy), seed in combinations)
    observers, outcomes = Observers(observer), list[Report | CompactlibError]()
    for outcome in mapper(Experiment.run, experiments):
        outcomes.append(outcome)
        observers.event("progress", work="experiments", done=len(outcomes), total=len(experiments), unit="experiments")
    made = Comparison(experiments, tuple(outcomes), skip)
    if made.failures and not made.reports:
        raise made.failures[0]
    return made


def _named(values: Any) -> list[tuple[str, Any]]:
    return list(values.items()) if isinstance(values, Mapping) else [(each.name, each) for each in values]
