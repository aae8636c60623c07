# SPDX-License-Identifier: Apache-2.0
"""Policies x workloads x parameters: each pair is a task, and any executor runs it, with the same results.

One process runs them one after the other; `ProcessExecutor` on all cores; `compactlib.spark.SparkExecutor` as a
DataFrame job. A task writes its report as a file into a folder that all of them reach; the table is read from there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs

from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.executors import LocalExecutor, answers_of, own_error
from compactlib.files import LocalFiles, crc32, local_path, write_durably
from compactlib.lab.results.reports import Report
from compactlib.observer import Observer, Observers
from compactlib.report import Printed, Setting
from compactlib.rewrite import Attempt, Executor, RewriteFailure, RewriteResult, RewrittenFile

MAX_EXPERIMENTS = 10_000
"""The most experiments of one comparison."""

_COLUMNS = ("seed", "compactions", "refused", "settings", "of", "error")
"""What a table has behind the labels of its rows."""

PolicyT_contra = TypeVar("PolicyT_contra", contravariant=True)
WorkloadT_contra = TypeVar("WorkloadT_contra", contravariant=True)
PolicyT = TypeVar("PolicyT")
WorkloadT = TypeVar("WorkloadT")


class Setup(Protocol[PolicyT_contra, WorkloadT_contra]):
    """A replay with its settings. Picklable, so that it can run elsewhere.

    `BlobSettings`, `RaftLogSettings`, `SchedulerSettings` and `SensorSettings` are setups. A class of your own that has
    these methods is one too: `compare`, `sweep` and `run_experiments` take it.
    """

    def replay(self, workload: WorkloadT_contra, policy: PolicyT_contra, *, seed: int,
               observer: Observer | None = None) -> Report:
        """What the policy makes of the workload; equal arguments give equal reports."""

    def read_report(self, text: str) -> Report:
        """The report of which `Report.to_json` gave this text."""

    def name_of(self, policy: PolicyT_contra) -> str:
        """A short name of the policy for tables."""


@attrs.frozen(kw_only=True)
class Experiment:
    """One policy, one workload, one setup, one seed. Picklable, if these are.

    Attributes:
        policy: the policy that decides.
        workload: what is asked.
        settings: the setup: what is replayed, and how it is laid out.
        seed: of the workload.
        labels: what distinguishes it in a table, such as the parameter that was swept.
    """

    policy: Any
    workload: Any
    settings: Setup[Any, Any]
    seed: int = 0
    labels: Mapping[str, Setting] = attrs.field(factory=dict)

    def run(self, observer: Observer | None = None) -> Report:
        """Replay; the same report each time. Raises what the replay raises."""
        return self.settings.replay(self.workload, self.policy, seed=self.seed, observer=observer)


@attrs.frozen
class ReplayTask:
    """An experiment as a task for any executor.

    Attributes:
        name: unique in one comparison.
        experiment: what to run.
        folder: where the report goes, reachable from where the task runs.
    """

    name: str
    experiment: Experiment
    folder: str

    def run(self, attempt: Attempt) -> RewriteResult:
        """See `RewriteTask.run`: the file holds the report as JSON."""
        started = attempt.clock.monotonic()
        content = self.experiment.run(attempt.observer).to_json().encode()
        path = os.path.join(self.folder, f"{attempt.id}.json")
        attempt.budget.check()
        write_durably(LocalFiles(), path, [content])
        written = RewrittenFile(path=path, size_bytes=len(content), entries=1, crc32=crc32(content))
        return RewriteResult(task=self.name, attempt=attempt.id, files=(written,), bytes_read=0,
                             bytes_written=len(content), seconds=attempt.clock.monotonic() - started)


@attrs.frozen(repr=False)
class Comparison(Printed):
    """What came of some experiments, in their order.

    Attributes:
        experiments: what was run.
        outcomes: what came of each: its report, or the error in which it ended.
        skip: which first part of each replay the table leaves out, as the store still filled up.
    """

    experiments: tuple[Experiment, ...]
    outcomes: tuple[Report | CompactlibError, ...]
    skip: float = 0.5

    @property
    def reports(self) -> tuple[Report, ...]:
        """Those of the experiments that came to their end."""
        return tuple(each for each in self.outcomes if not isinstance(each, CompactlibError))

    @property
    def failures(self) -> tuple[tuple[Experiment, CompactlibError], ...]:
        """The experiments that failed, each with the error."""
        return tuple((experiment, each) for experiment, each in zip(self.experiments, self.outcomes, strict=True)
                     if isinstance(each, CompactlibError))

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary an experiment: what was run, and the figures of its steady part; what is unknown as `None`.

        All have the same keys but for labels. If one has failed, all have `error`, which is `None` for the others.
        """
        unknown: dict[str, Any] = {**dict.fromkeys(self.figures), "compactions": None, "refused": None,
                                   "settings": None, "of": None}
        rows = []
        for experiment, outcome in zip(self.experiments, self.outcomes, strict=True):
            row = {"policy": experiment.settings.name_of(experiment.policy), "workload": experiment.workload.name,
                   **experiment.labels, "seed": experiment.seed, **unknown}
            if not isinstance(outcome, CompactlibError):
                steady = outcome.steady(self.skip)
                row.update(steady.figures(), compactions=steady.compactions, refused=steady.refused,
                           settings=outcome.policy, of=outcome.workload)
            if self.failures:
                row["error"] = str(outcome) if isinstance(outcome, CompactlibError) else None
            rows.append(row)
        return rows

    @property
    def figures(self) -> Mapping[str, str]:
        """The figures that its reports have, and what each says."""
        return {name: title for report in self.reports for name, title in report.intervals[0].FIGURES.items()}

    def best(self, figure: str = "write_amplification") -> Experiment:
        """The experiment with the least of a figure.

        Raises:
            InvalidInput: there is no such figure, no experiment knows it, or there is none.
        """
        values = {place: value for place, report in enumerate(self.outcomes) if not isinstance(report, CompactlibError)
                  and (value := report.steady(self.skip).figures().get(figure)) is not None}
        if not values:
            raise InvalidInput(f"no best {figure!r} of {len(self.reports)} experiments; figures are "
                               f"{', '.join(self.figures)}")
        return self.experiments[min(values, key=values.__getitem__)]

    def _summary(self) -> str:
        failed = f"; {len(self.failures)} failed" if self.failures else ""
        return f"{len(self.experiments)} experiments, the first {self.skip:.0%} of each left out{failed}"


def compare(policies: Iterable[PolicyT], workloads: Iterable[WorkloadT],
            settings: Setup[PolicyT, WorkloadT] | Mapping[str, Setup[PolicyT, WorkloadT]], *,
            seeds: Sequence[int] = (0,)) -> tuple[Experiment, ...]:
    """Every policy with every workload, setup and seed; hand them to `run_experiments`.

    Args:
        policies: the policies that decide; of a scheduler its configurations, of a staging area what its sensor asks.
        workloads: what is asked.
        settings: what is replayed; several setups as a mapping, whose keys become the column `setup`.
        seeds: of the workloads.
    """
    setups: Mapping[str, Setup[PolicyT, WorkloadT]]
    setups = settings if isinstance(settings, Mapping) else {"": settings}
    return tuple(Experiment(policy=policy, workload=workload, settings=setup, seed=seed,
                            labels={"setup": name} if name else {})
                 for workload, (name, setup), policy, seed
                 in itertools.product(tuple(workloads), setups.items(), tuple(policies), seeds))


def sweep(make: Callable[..., PolicyT], parameters: Mapping[str, Sequence[Setting]], workload: WorkloadT,
          settings: Setup[PolicyT, WorkloadT], *, seeds: Sequence[int] = (0,)) -> tuple[Experiment, ...]:
    """A policy with every combination of some settings; hand them to `run_experiments`.

    Args:
        make: makes the policy of the settings as keyword arguments, such as its class.
        parameters: the values of each setting.
        workload: what is asked.
        settings: what is replayed.
        seeds: of the workload.

    Raises:
        InvalidInput: as `grid`.
    """
    return grid(lambda **values: Experiment(policy=make(**values), workload=workload, settings=settings),
                parameters, seeds=seeds)


def grid(make: Callable[..., Experiment], parameters: Mapping[str, Sequence[Setting]], *,
         seeds: Sequence[int] = (0,)) -> tuple[Experiment, ...]:
    """An experiment for every combination of parameters of any kind: of the policy, the workload or the setup.

    Args:
        make: makes the experiment of the parameters as keyword arguments; its seed and labels are set here.
        parameters: the values of each; they become columns.
        seeds: of the workload.

    Raises:
        InvalidInput: a parameter is called as a column that every table has.
    """
    names = tuple(parameters)
    if hidden := [name for name in names if name in _COLUMNS]:
        raise InvalidInput(f"the parameter {hidden[0]!r} would be hidden by the column of this name, which every table "
                           f"has; call it otherwise: grid(lambda policy_seed: ..., {{'policy_seed': ...}})")
    combinations = [dict(zip(names, values, strict=True))
                    for values in itertools.product(*(parameters[name] for name in names))]
    return tuple(attrs.evolve(make(**values), seed=seed, labels=values) for values in combinations for seed in seeds)


def run_experiments(experiments: Iterable[Experiment], folder: str | os.PathLike[str] | None = None, *,
                    executor: Executor | None = None, observer: Observer | None = None,
                    skip: float = 0.5) -> Comparison:
    """Run them, wherever the executor does, and read the reports. The same experiments give the same reports.

    One that fails is among the `failures` of the comparison, and the others' reports are there all the same.

    Args:
        experiments: at most `MAX_EXPERIMENTS`.
        folder: an existing folder that this process and the executor's reach; the reports' files are removed once read.
            Without an executor there need be none.
        executor: default one after the other, here.
        observer: notified of progress, in experiments.
        skip: see `Comparison`.

    Raises:
        InvalidInput: there are too many, or an executor has no folder.
        CompactlibError: what the first one ended in, if every one has failed.
        CorruptData: a report is not what its task wrote.
    """
    listed = tuple(experiments)
    if len(listed) > MAX_EXPERIMENTS:
        raise InvalidInput(f"{len(listed)} experiments; run at most {MAX_EXPERIMENTS} at once")
    told = Observers(observer)
    outcomes = _here(listed, told) if folder is None and executor is None else _elsewhere(
        listed, folder, LocalExecutor() if executor is None else executor, told)
    made = Comparison(listed, outcomes, skip)
    if made.failures and not made.reports:
        raise made.failures[0][1]
    return made


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
    setups = {task.name: task.experiment.settings for task in tasks}
    found: dict[str, Report | CompactlibError] = {}
    for outcome in answers_of(executor, tasks, observer=observer):
        found[outcome.task] = outcome.error if isinstance(outcome, RewriteFailure) else _read(
            outcome.files[0], setups[outcome.task])
        observer.event("progress", work="experiments", done=len(found), total=len(tasks), unit="experiments")
    return tuple(found[task.name] for task in tasks)


def _task_name(number: int) -> str:
    return f"experiment {number:05d}"


def _read(file: RewrittenFile, setup: Setup[Any, Any]) -> Report:
    content = Path(file.path).read_bytes()
    if crc32(content) != file.crc32:
        raise CorruptData(path=file.path, offset=0, expected=f"CRC {file.crc32}", found=f"CRC {crc32(content)}")
    LocalFiles().unlink(file.path)
    return setup.read_report(content.decode())
