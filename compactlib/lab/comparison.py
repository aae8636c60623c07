# SPDX-License-Identifier: Apache-2.0
"""Replay policies x workloads x models x seeds: each combination is a task that any executor runs."""

from __future__ import annotations

import itertools
import os
import tempfile  # noqa: TID251 - reports on their way between processes, no data of a store
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs

from compactlib.codec import JsonCodec
from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.executors import LocalExecutor, answers_of
from compactlib.files import LocalFiles, StrPath, crc32, local_path, write_durably
from compactlib.lab.report import Measures, Report
from compactlib.lab.simulation import Model, replay
from compactlib.lab.workloads import Workload
from compactlib.observer import Observer, Observers
from compactlib.report import Printed
from compactlib.rewrite import Attempt, Executor, RewriteFailure, RewriteResult, RewrittenFile

MAX_EXPERIMENTS = 10_000
"""The largest number of replays in one comparison."""
_CODEC: JsonCodec[Report] = JsonCodec(Report)


@attrs.frozen(kw_only=True)
class Experiment:
    """One policy on one workload in one model: a task for any executor, which writes its report as a JSON file.

    Attributes:
        name: unique in one comparison.
        labels: what distinguishes it in a table.
        policy: the policy.
        workload: the operations.
        model: the store.
        seed: of the random draws of workload and model.
        folder: of the report's file; the task has to reach it.
    """

    name: str
    labels: Mapping[str, str]
    policy: Any
    workload: Workload
    model: Model
    seed: int
    folder: str

    def run(self, attempt: Attempt) -> RewriteResult:
        started = attempt.clock.monotonic()
        report = replay(self.workload, self.policy, self.model, seed=self.seed, observer=attempt.observer)
        content = _CODEC.encode(report)
        path = os.path.join(self.folder, f"{attempt.id}.json")
        attempt.budget.check()
        write_durably(LocalFiles(), path, [content])
        written = RewrittenFile(path=path, size_bytes=len(content), entries=1, crc32=crc32(content))
        return RewriteResult(task=self.name, attempt=attempt.id, files=(written,), bytes_read=0,
                             bytes_written=len(content), seconds=attempt.clock.monotonic() - started)


@attrs.frozen(repr=False)
class Comparison(Printed):
    """The results of a comparison, in the order of its replays.

    Attributes:
        experiments: the replays.
        outcomes: for each replay its report, or its error.
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
            executor: Executor | None = None, folder: StrPath | None = None,
            observer: Observer | None = None) -> Comparison:
    """Replay every workload against every policy in every model.

    An error of one replay stops no other. Equal arguments give equal reports on every executor.

    Args:
        policies: the policies. Tables show the keys of a mapping, otherwise the policies' names.
        workloads: the workloads; likewise.
        models: the store; several as a mapping, whose keys become the column `model`.
        seeds: of the random draws of workloads and models.
        skip: the first part of each replay, 0 to 1, that the table leaves out because the store was filling up.
        executor: runs the replays; by default one after the other in this process.
        folder: an existing folder for the reports' files, which are removed once read. By default a temporary folder,
            which executors on other machines do not reach.
        observer: notified of progress, in experiments.

    Raises:
        InvalidInput: there are more than `MAX_EXPERIMENTS`.
        CompactlibError: all replays failed; the error of the first is raised.
        CorruptData: a report's file does not have its checksum.
    """
    combinations = list(itertools.product(
        _named(workloads), models.items() if isinstance(models, Mapping) else [("", models)], _named(policies), seeds))
    if len(combinations) > MAX_EXPERIMENTS:
        raise InvalidInput(f"{len(combinations)} replays; compare at most {MAX_EXPERIMENTS} at once")
    observers = Observers(observer)
    found: dict[str, Report | CompactlibError] = {}
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        experiments = tuple(
            Experiment(name=f"experiment {number:05d}",
                       labels={"policy": called, "workload": load, **({"model": name} if name else {})},
                       policy=policy, workload=workload, model=model, seed=seed, folder=local_path(place))
            for number, ((load, workload), (name, model), (called, policy), seed) in enumerate(combinations))
        for outcome in answers_of(executor or LocalExecutor(), experiments, observer=observers):
            found[outcome.task] = outcome.error if isinstance(outcome, RewriteFailure) else _read(outcome.files[0])
            observers.event("progress", work="experiments", done=len(found), total=len(experiments),
                            unit="experiments")
    made = Comparison(experiments, tuple(found[each.name] for each in experiments), skip)
    if made.failures and not made.reports:
        raise made.failures[0]
    return made


def _named(values: Any) -> list[tuple[str, Any]]:
    return list(values.items()) if isinstance(values, Mapping) else [(each.name, each) for each in values]


def _read(file: RewrittenFile) -> Report:
    content = Path(file.path).read_bytes()
    if crc32(content) != file.crc32:
        raise CorruptData(path=file.path, offset=0, expected=f"CRC {file.crc32}", found=f"CRC {crc32(content)}")
    LocalFiles().unlink(file.path)
    return _CODEC.decode(content, file.path)
