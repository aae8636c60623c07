# SPDX-License-Identifier: Apache-2.0
"""Replay policies x workloads x models x seeds, here or in other processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from compactlib.lab.report import Measures, Report, require_skip
from compactlib.lab.simulation import Model, replay
from compactlib.lab.workloads import Workload
from compactlib.observer import Observer, Observers
from compactlib.report import Printed

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

    def run(self) -> Report:
        """Return the report of the replay; an error has a note with the labels."""
        try:
            return replay(self.workload, self.policy, self.model, seed=self.seed)
        except Exception as error:
            error.add_note(f"in the replay of {', '.join(self.labels.values())}")
            raise


@attrs.frozen(repr=False)
class Comparison(Printed):
    """The results of a comparison, in the order of its replays.

    Attributes:
        experiments: the replays.
        reports: the report of each replay.
        skip: the first part of each replay, 0 to 1, that the table leaves out because the store was filling up.
    """

    experiments: tuple[Experiment, ...]
    reports: tuple[Report, ...]
    skip: float = 0.5

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary a replay, all with the same keys: its labels, and the figures of its steady part.

        An unknown figure is `None`; a figure that is unknown in all replays is left out.
        """
        steady = [each.steady(self.skip) for each in self.reports]
        figures = [each.figures() for each in steady]
        known = [name for name in Measures.FIGURES if any(each[name] is not None for each in figures)]
        return [{**experiment.labels, "seed": experiment.seed, **{name: own[name] for name in known},
                 "compactions": counts.compactions, "refused": counts.refused}
                for experiment, counts, own in zip(self.experiments, steady, figures, strict=True)]

    def _summary(self) -> str:
        return f"{len(self.experiments)} experiments, the first {self.skip:.0%} of each left out"


def compare(policies: Iterable[Any] | Mapping[str, Any], workloads: Iterable[Workload] | Mapping[str, Workload],
            models: Model | Mapping[str, Model], *, seeds: Sequence[int] = (0,), skip: float = 0.5,
            mapper: Mapper = map, observer: Observer | None = None) -> Comparison:
    """Replay every workload against every policy in every model.

    Equal arguments give equal reports, wherever they run. An error of a replay, such as one of a policy's code, is
    raised, with a note that names the replay.

    Args:
        policies: the policies. Tables show the keys of a mapping, otherwise the policies' names.
        workloads: the workloads; likewise.
        models: the store; several as a mapping, whose keys become the column `model`.
        seeds: the seeds of the random draws of workloads and models.
        skip: the first part of each replay, 0 to 1, that the table leaves out because the store was filling up.
        mapper: runs the replays, as the builtin `map` does here, one after the other. On all cores: the `map` of a
            `concurrent.futures.ProcessPoolExecutor`; policies are then defined in a module.
        observer: notified of progress, in experiments.
    """
    require_skip(skip)
    experiments = tuple(
        Experiment(labels={"policy": called, "workload": load, **({"model": name} if name else {})},
                   policy=policy, workload=workload, model=model, seed=seed)
        for (load, workload), (name, model), (called, policy), seed in itertools.product(
            _named(workloads), models.items() if isinstance(models, Mapping) else [("", models)], _named(policies),
            seeds))
    observers, reports = Observers(observer), list[Report]()
    for report in mapper(Experiment.run, experiments):
        reports.append(report)
        observers.event("progress", work="experiments", done=len(reports), total=len(experiments), unit="experiments")
    return Comparison(experiments, tuple(reports), skip)


def _named(values: Any) -> list[tuple[str, Any]]:
    return list(values.items()) if isinstance(values, Mapping) else [(each.name, each) for each in values]
