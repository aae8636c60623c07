# SPDX-License-Identifier: Apache-2.0
"""Policies x workloads x models x seeds: each a replay, and a task that any executor runs with the same results."""

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
"""The most replays of one comparison."""
_CODEC: JsonCodec[Report] = JsonCodec(Report)


@attrs.frozen(kw_only=True)
class Experiment:
    """One policy on one workload in one model: a task for any executor, whose file holds the report as JSON.

    Attributes:
        name: unique in one comparison.
        labels: what distinguishes it in a table.
        policy: the policy.
        workload: what is asked.
        model: the store.
        seed: of what is drawn.
        folder: where the report goes, reachable from where the task runs.
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
            executor: Executor | None = None, folder: StrPath | None = None,
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
        folder: an existing folder for the reports' files, which are removed once read. By default a temporary one,
            which executors on other machines do not reach.
        observer: notified of progress, in experiments.

    Raises:
        InvalidInput: there are more than `MAX_EXPERIMENTS`.
        CompactlibError: the error of the first replay, if every one has failed.
        CorruptData: a report is not what its task wrote.
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
