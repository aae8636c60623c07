"""Policies x workloads x parameters: each pair is a task, and any executor runs it, with the same results.

One process runs them one after the other; `ProcessExecutor` on all cores; `compactlib.spark.SparkExecutor` as a
DataFrame job. A task writes its report as a file into a folder that all of them reach; the table is read from there.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.blobstore.policy import CompactionPolicy
from compactlib.checksum import crc32
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files import LocalFiles, write_durably
from compactlib.lab.blob_replay import replay_blobs
from compactlib.lab.blob_report import ReplayReport
from compactlib.lab.blob_settings import BlobSettings
from compactlib.lab.measures import AMPLIFICATIONS
from compactlib.lab.workloads import Workload
from compactlib.observe import Observer, Progress
from compactlib.report import PolicyRecord, Printed
from compactlib.rewrite import (
    Attempt,
    Executor,
    LocalExecutor,
    RewriteFailure,
    RewriteResult,
    RewrittenFile,
)

MAX_EXPERIMENTS = 10_000
"""The most experiments of one comparison."""


@attrs.frozen(kw_only=True)
class Experiment:
    """One policy, one workload, one store, one seed. Picklable, if policy and workload are.

    Attributes:
        policy: who decides.
        workload: what is asked.
        settings: the store.
        seed: of the workload.
        labels: what tells it apart in a table, such as the parameter that was swept.
    """

    policy: CompactionPolicy
    workload: Workload
    settings: BlobSettings
    seed: int = 0
    labels: Mapping[str, int | float | str] = attrs.field(factory=dict)

    def run(self, observer: Observer | None = None) -> ReplayReport:
        """Replay it, here and now."""
        return replay_blobs(self.workload, self.policy, self.settings, seed=self.seed, observer=observer)


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
    """The reports of some experiments, in their order.

    Attributes:
        experiments: what was run.
        reports: what came of each.
        skip: which first part of each replay the table leaves out, as the store still filled up.
    """

    experiments: tuple[Experiment, ...]
    reports: tuple[ReplayReport, ...]
    skip: float = 0.5

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary an experiment: what was run, and the figures of its steady part; NaN as `None`."""
        rows = []
        for experiment, report in zip(self.experiments, self.reports, strict=True):
            steady = report.steady(self.skip)
            figures = {name: getattr(steady, name) for name in AMPLIFICATIONS}
            rows.append({"policy": experiment.policy.name, "workload": experiment.workload.name,
                         **experiment.labels, "seed": experiment.seed,
                         **{name: None if math.isnan(value) else value for name, value in figures.items()},
                         "compactions": steady.compactions, "refused": steady.refused,
                         "settings": str(PolicyRecord.of(experiment.policy)), "of": str(experiment.workload)})
        return rows

    def best(self, figure: str = "write_amplification") -> Experiment:
        """The experiment with the least of a figure.

        Raises:
            InvalidInput: there is no such figure, or no experiment.
        """
        if figure not in AMPLIFICATIONS or not self.reports:
            raise InvalidInput(f"no best {figure!r} of {len(self.reports)} experiments; figures are "
                               f"{', '.join(AMPLIFICATIONS)}")
        values = [getattr(report.steady(self.skip), figure) for report in self.reports]
        known = [place for place, value in enumerate(values) if not math.isnan(value)] or [0]
        return self.experiments[min(known, key=values.__getitem__)]

    def _summary(self) -> str:
        return f"{len(self.experiments)} experiments, the first {self.skip:.0%} of each left out"


def compare(policies: Iterable[CompactionPolicy], workloads: Iterable[Workload], settings: BlobSettings, *,
            seeds: Sequence[int] = (0,)) -> tuple[Experiment, ...]:
    """Every policy with every workload and seed; hand them to `run_experiments`."""
    return tuple(Experiment(policy=policy, workload=workload, settings=settings, seed=seed)
                 for workload, policy, seed in itertools.product(tuple(workloads), tuple(policies), seeds))


def sweep(make: Callable[..., CompactionPolicy], parameters: Mapping[str, Sequence[int | float | str]],
          workload: Workload, settings: BlobSettings, *, seeds: Sequence[int] = (0,)) -> tuple[Experiment, ...]:
    """A policy with every combination of some settings; hand them to `run_experiments`.

    Args:
        make: makes the policy of the settings as keyword arguments, such as its class.
        parameters: the values of each setting.
        workload: what is asked.
        settings: the store.
        seeds: of the workload.
    """
    names = tuple(parameters)
    return tuple(Experiment(policy=make(**dict(zip(names, values, strict=True))), workload=workload, settings=settings,
                            seed=seed, labels=dict(zip(names, values, strict=True)))
                 for values in itertools.product(*(parameters[name] for name in names)) for seed in seeds)


def run_experiments(experiments: Iterable[Experiment], folder: str | os.PathLike[str], *,
                    executor: Executor | None = None, observer: Observer | None = None,
                    skip: float = 0.5) -> Comparison:
    """Run them, wherever the executor does, and read the reports. The same experiments give the same reports.

    Args:
        experiments: at most `MAX_EXPERIMENTS`.
        folder: an existing folder that driver and workers reach; the reports' files are removed once read.
        executor: default one after the other, here.
        observer: told of progress, in experiments.
        skip: see `Comparison`.

    Raises:
        InvalidInput: there are too many.
        CompactlibError: whatever the first experiment that failed ended in.
        CorruptData: a report is not what its task wrote.
    """
    listed = tuple(experiments)
    if len(listed) > MAX_EXPERIMENTS:
        raise InvalidInput(f"{len(listed)} experiments; run at most {MAX_EXPERIMENTS} at once")
    tasks = [ReplayTask(f"experiment {number:05d}", each, os.fspath(folder)) for number, each in enumerate(listed)]
    told = Observer() if observer is None else observer
    found: dict[str, ReplayReport] = {}
    for outcome in (LocalExecutor() if executor is None else executor).run(tasks, observer=observer):
        if isinstance(outcome, RewriteFailure):
            raise outcome.error
        found[outcome.task] = _read(outcome.files[0])
        told.progress(Progress("experiments", len(found), len(tasks), "experiments"))
    return Comparison(listed, tuple(found[task.name] for task in tasks), skip)


def _read(file: RewrittenFile) -> ReplayReport:
    content = Path(file.path).read_bytes()
    if crc32(content) != file.crc32:
        raise CorruptData(path=file.path, offset=0, expected=f"CRC {file.crc32}", found=f"CRC {crc32(content)}")
    LocalFiles().unlink(file.path)
    return ReplayReport.from_json(content.decode())
