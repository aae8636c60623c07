# SPDX-License-Identifier: Apache-2.0
"""Policies x workloads x models x seeds: each a replay, and a task that any executor runs with the same results."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.executors import answers_of, own_error
from compactlib.files import LocalFiles, crc32, local_path, write_durably
from compactlib.lab.report import Measures, Report
from compactlib.lab.simulation import Model, replay
from compactlib.lab.workloads import Workload
from compactlib.observer import Observer, Observers
from compactlib.report import Printed
from compactlib.rewrite import Attempt, Executor, RewriteFailure, RewriteResult, RewrittenFile

MAX_REPLAYS = 10_000
"""The most replays of one comparison."""


@attrs.frozen(kw_only=True)
class Experiment:
    """One policy on one workload in one model.

    Attributes:
        labels: what distinguishes it in a table.
        policy: the policy.
        workload: what is asked.
        model: the store.
        seed: of what is drawn.
    """

    labels: Mapping[str, str]
    policy: Any
    workload: Workload
    model: Model
    seed: int

    def run(self, observer: Observer | None = None) -> Report:
        """Replay; the same report each time."""
        return replay(self.workload, self.policy, self.model, seed=self.seed, observer=observer)


@attrs.frozen
class ReplayTask:
    """An experiment as a task for any executor; its file holds the report as JSON.

    Attributes:
        name: unique in one comparison.
        experiment: what to run.
        folder: where the report goes, reachable from where the task runs.
    """

    name: str
    experiment: Experiment
    folder: str

    def run(self, attempt: Attempt) -> RewriteResult:
        started = attempt.clock.monotonic()
        content = self.experiment.run(attempt.observer).to_json()
        path = os.path.join(self.folder, f"{attempt.id}.json")
        attempt.budget.check()
        write_durably(LocalFiles(), path, [content])
        written = RewrittenFile(path=path, size_bytes=len(content), entries=1, crc32=crc32(content))
        return RewriteResult(task=self.name, attempt=attempt.id, files=(written,), bytes_read=0,
                             bytes_written=len(content), seconds=attempt.clock.monotonic() - started)


@attrs.frozen(repr=False)
class Comparison(Printed):
    """What came of some replays, in their order.

    Attributes:
        experiments: what was replayed.
        outcomes: of each its report, or the error in which it ended.
        skip: which first part of each replay the table leaves out, as the store still filled up.
    """

    experiments: tuple[Experiment, ...]
    outcomes: tuple[Report | CompactlibError, ...]
    skip: float = 0.5

    @property
    def reports(self) -> tuple[Report, ...]:
        """Those of the replays that came to their end."""
        return tuple(each for each in self.outcomes if isinstance(each, Report))

    @property
    def failures(self) -> tuple[CompactlibError, ...]:
        """The errors of the others."""
        return tuple(each for each in self.outcomes if isinstance(each, CompactlibError))

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a replay, all with the same keys: what was replayed, and the figures of its steady part.

        What is unknown is `None`. If a replay has failed, all have `error`, which is `None` for the others.
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
            executor: Executor | None = None, folder: str | os.PathLike[str] | None = None,
            observer: Observer | None = None) -> Comparison:
    """Replay every workload against every policy in every model.

    The error of one replay keeps nothing of the others. Equal arguments give equal reports, whoever runs them.

    Args:
        policies: the policies. As a mapping, its keys are shown in tables; otherwise their names.
        workloads: what is asked; likewise.
        models: the store; several as a mapping, whose keys become the column `model`.
        seeds: of what workloads and models draw.
        skip: which first part of each replay the table leaves out, as the store still filled up; 0 to 1.
        executor: runs the replays; by default, one after the other, here.
        folder: an existing folder that this process and the executor's reach; for an executor. The reports' files are
            removed once read.
        observer: notified of progress, in experiments.

    Raises:
        InvalidInput: there are more than `MAX_REPLAYS`, or an executor has no folder.
        CompactlibError: the error of the first replay, if every one has failed.
        CorruptData: a report is not what its task wrote.
    """
    experiments = tuple(
        Experiment(labels={"policy": called, "workload": load, **({"model": name} if name else {})}, policy=policy,
                   workload=workload, model=model, seed=seed)
        for (load, workload), (name, model), (called, policy), seed in itertools.product(
            _named(workloads), models.items() if isinstance(models, Mapping) else [("", models)], _named(policies),
            seeds))
    if len(experiments) > MAX_REPLAYS:
        raise InvalidInput(f"{len(experiments)} replays; compare at most {MAX_REPLAYS} at once")
    observers = Observers(observer)
    outcomes = _here(experiments, observers) if executor is None else _elsewhere(
        experiments, folder, executor, observers)
    made = Comparison(experiments, outcomes, skip)
    if made.failures and not made.reports:
        raise made.failures[0]
    return made


def _named(values: Any) -> list[tuple[str, Any]]:
    return list(values.items()) if isinstance(values, Mapping) else [(each.name, each) for each in values]


def _here(experiments: Sequence[Experiment], observer: Observer) -> tuple[Report | CompactlibError, ...]:
    found: list[Report | CompactlibError] = []
    for number, each in enumerate(experiments):
        try:
            found.append(each.run(observer))
        except Exception as error:  # a policy's own, perhaps
            found.append(own_error(_task_name(number), error))
        observer.event("progress", work="experiments", done=len(found), total=len(experiments), unit="experiments")
    return tuple(found)


def _elsewhere(experiments: Sequence[Experiment], folder: str | os.PathLike[str] | None, executor: Executor,
               observer: Observer) -> tuple[Report | CompactlibError, ...]:
    if folder is None:
        raise InvalidInput("an executor is given and no folder; give an existing one that its processes reach, where "
                           "the reports are left for this one")
    tasks = [ReplayTask(_task_name(number), each, local_path(folder)) for number, each in enumerate(experiments)]
    found: dict[str, Report | CompactlibError] = {}
    for outcome in answers_of(executor, tasks, observer=observer):
        found[outcome.task] = outcome.error if isinstance(outcome, RewriteFailure) else _read(outcome.files[0])
        observer.event("progress", work="experiments", done=len(found), total=len(tasks), unit="experiments")
    return tuple(found[task.name] for task in tasks)


def _task_name(number: int) -> str:
    return f"experiment {number:05d}"


def _read(file: RewrittenFile) -> Report:
    content = Path(file.path).read_bytes()
    if crc32(content) != file.crc32:
        raise CorruptData(path=file.path, offset=0, expected=f"CRC {file.crc32}", found=f"CRC {crc32(content)}")
    LocalFiles().unlink(file.path)
    return Report.from_json(content)
