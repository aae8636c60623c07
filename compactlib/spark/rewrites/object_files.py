# SPDX-License-Identifier: Apache-2.0
"""Tasks whose files travel through an object store, for workers that share no folder with this process.

The files a task reads are put into the store, the worker takes them into a scratch folder, runs the task there, and
puts what it wrote under a key of its attempt; this process takes that back into the folder the task names, where the
caller commits it as ever. Objects are immutable and keys are unique, so a retry or a late attempt meets no other.
"""

from __future__ import annotations

import os
import shutil  # noqa: TID251 - scratch of one attempt, no data of the library
import tempfile  # noqa: TID251 - scratch of one attempt, no data of the library
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from compactlib.blobstore.compaction.rewrite.task import CopyRecords
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors.tasks import checked_names, new_attempt_id
from compactlib.files.disk import Files, LocalFiles
from compactlib.objects import ObjectStore
from compactlib.objects.store import delete_many
from compactlib.raftlog.compaction.rewrite import CompactSegments
from compactlib.rewrite import (
    Attempt,
    Executor,
    RewriteFailure,
    RewriteOutcome,
    RewriteResult,
    RewriteTask,
    RewrittenFile,
)
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling
from compactlib.spark.rewrites.carried_files import CarriedFile, put_file, take_file

OpenStore: TypeAlias = Callable[[], ObjectStore]
"""Opens the object store; picklable, since workers call it too: `functools.partial(LocalObjects, folder)`, or a
function that makes a `RemoteObjects`."""

DEFAULT_PART_BYTES = 32 << 20
"""Larger files travel as several objects. Large enough that a request more hardly counts, small beside a worker's
memory."""


@attrs.frozen
class TaskFiles:
    """Which files a kind of task reads, and how it is sent to read and write elsewhere.

    Attributes:
        kind: the class of the tasks.
        inputs: the paths of the files that a task reads.
        folder: where a task writes.
        moved: the same task, with each input under its own name in this folder, and writing there as well.
    """

    kind: type
    inputs: Callable[[Any], Sequence[str]]
    folder: Callable[[Any], str]
    moved: Callable[[Any, str], Any]


def _moved_segments(task: CompactSegments, folder: str) -> CompactSegments:
    sources = tuple(attrs.evolve(source, path=os.path.join(folder, os.path.basename(source.path)))
                    for source in task.sources)
    return attrs.evolve(task, folder=folder, sources=sources)


KNOWN_TASKS: tuple[TaskFiles, ...] = (
    TaskFiles(CompactSegments, lambda task: [source.path for source in task.sources], lambda task: task.folder,
              _moved_segments),
    TaskFiles(CopyRecords, lambda task: [os.path.join(task.folder, source.segment.log_file) for source in task.sources],
              lambda task: task.folder, lambda task, folder: attrs.evolve(task, folder=folder)),
)
"""The tasks of this library that read and write files: `ObjectsExecutor` carries them unless it is given others."""


@attrs.frozen(kw_only=True)
class CarriedTask:
    """A task that runs in a scratch folder, with its files taken from an object store and put there.

    Attributes:
        name: the task's name.
        task: the task as it was given.
        moved: sends it to another folder, see `TaskFiles`.
        open_store: opens the store.
        inputs: the files that it reads.
        prefix: what the keys of this run begin with.
        part_bytes: the largest object that it puts.
        scratch: where scratch folders are made; the system's own place if `None`.
    """

    name: str
    task: RewriteTask
    moved: Callable[[Any, str], Any]
    open_store: OpenStore
    inputs: tuple[CarriedFile, ...]
    prefix: str
    part_bytes: int = DEFAULT_PART_BYTES
    scratch: str | None = None

    def run(self, attempt: Attempt) -> RewriteResult:
        """See `RewriteTask.run`.

        Raises:
            BadDigest: an input is not what was put there.
            ObjectNotFound, StoreFailed: the store does not give or take a file.
        """
        folder = tempfile.mkdtemp(prefix="compactlib-task-", dir=self.scratch)
        try:
            with self.open_store() as store:
                for each in self.inputs:
                    take_file(store, each, os.path.join(folder, each.name), LocalFiles())
                result: RewriteResult = self.moved(self.task, folder).run(attempt)
                files = tuple(self._put(store, file, attempt, number) for number, file in enumerate(result.files))
            return attrs.evolve(result, files=files)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _put(self, store: ObjectStore, file: RewrittenFile, attempt: Attempt, number: int) -> RewrittenFile:
        carried = put_file(store, f"{self.prefix}/out/{attempt.id}/{number}", file.path, self.part_bytes)
        return attrs.evolve(file, path=carried.to_path())


class ObjectsExecutor:
    """An `Executor` that carries the files of tasks to another one's workers and back, through an object store.

    Nothing changes for the caller: results name files in the folder that the task named. Whole files are carried, also
    where a task reads a part of them, in parts of `part_bytes`, of which one is in memory at a time here and in each
    worker. So use it where no folder can be shared. When a run ends, its objects are deleted; those that could not be
    (the event `spark_objects_left`), and what an attempt puts after that, are removed by `sweep`.

    Args:
        executor: who runs the tasks; a `SparkExecutor` needs nothing else.
        open_store: opens the object store, here and on the workers.
        prefix: what the keys of all runs begin with; for them alone.
        kinds: the kinds of tasks it can carry.
        files: the disk of this process.
        part_bytes: the largest object that is put, >= 1.
        scratch: where workers make their scratch folders; default their system's own place.

    Raises:
        InvalidInput: `part_bytes` is less than 1.
    """

    def __init__(self, executor: Executor, open_store: OpenStore, *, prefix: str = "rewrites",
                 kinds: Sequence[TaskFiles] = KNOWN_TASKS, files: Files | None = None,
                 part_bytes: int = DEFAULT_PART_BYTES, scratch: str | None = None) -> None:
        if part_bytes < 1:
            raise InvalidInput(f"part_bytes is {part_bytes}; give at least 1")
        self._executor = executor
        self._open_store = open_store
        self._prefix = prefix
        self._kinds = tuple(kinds)
        self._files: Files = LocalFiles() if files is None else files
        self._part_bytes = part_bytes
        self._scratch = scratch

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. A task whose files cannot be carried fails with the store's error.

        Raises:
            InvalidInput: there is a task of a kind that is not known.
        """
        listed = checked_names(tasks)
        known = {task.name: self._files_of(task) for task in listed}
        return self._run(listed, known, budget, telling(observer))

    def _files_of(self, task: RewriteTask) -> TaskFiles:
        for kind in self._kinds:
            if isinstance(task, kind.kind):
                return kind
        raise InvalidInput(f"task {task.name!r} is a {type(task).__name__}, and nothing says which files it reads; "
                           "give ObjectsExecutor a TaskFiles for it")

    def _run(self, tasks: Sequence[RewriteTask], known: dict[str, TaskFiles], budget: Budget | None,
             observer: Observer) -> Generator[RewriteOutcome, None, None]:
        if not tasks:
            return
        try:
            store = self._open_store()
        except CompactlibError as error:
            yield from (RewriteFailure(task.name, error) for task in tasks)
            return
        run = f"{self._prefix}/{new_attempt_id()}"
        folders = {task.name: known[task.name].folder(task) for task in tasks}
        with store:
            try:
                carried: list[RewriteTask] = []
                sent: dict[str, CarriedFile] = {}
                for task in tasks:
                    try:
                        inputs = tuple(self._sent(store, run, path, sent) for path in known[task.name].inputs(task))
                    except CompactlibError as error:
                        yield RewriteFailure(task.name, error)
                        continue
                    carried.append(CarriedTask(
                        name=task.name, task=task, moved=known[task.name].moved, inputs=inputs, prefix=run,
                        open_store=self._open_store, part_bytes=self._part_bytes, scratch=self._scratch))
                outcomes = self._executor.run(carried, budget=budget, observer=observer)
                try:
                    for outcome in outcomes:
                        yield self._taken(store, outcome, folders[outcome.task])
                finally:
                    # Where the caller leaves early: what runs has to end before its objects go.
                    if isinstance(outcomes, Generator):
                        outcomes.close()
            finally:
                self._delete_all(store, run, observer)

    def _sent(self, store: ObjectStore, run: str, path: str, sent: dict[str, CarriedFile]) -> CarriedFile:
        if path not in sent:
            sent[path] = put_file(store, f"{run}/in/{new_attempt_id()}", path, self._part_bytes)
        return sent[path]

    def _taken(self, store: ObjectStore, outcome: RewriteOutcome, folder: str) -> RewriteOutcome:
        """The outcome with its files in the task's own folder."""
        if not isinstance(outcome, RewriteResult):
            return outcome
        taken: list[RewrittenFile] = []
        try:
            for file in outcome.files:
                carried = CarriedFile.from_path(file.path)
                path = os.path.join(folder, carried.name)
                take_file(store, carried, path, self._files)
                taken.append(attrs.evolve(file, path=path))
        except CompactlibError as error:
            return RewriteFailure(outcome.task, error)
        return attrs.evolve(outcome, files=tuple(taken))

    def _delete_all(self, store: ObjectStore, run: str, observer: Observer) -> None:
        """Delete a run's objects; they have no owner any more, so what the store refuses is left to `sweep`."""
        try:
            delete_many(store, [info.key for info in store.list(f"{run}/")])
        except CompactlibError as error:
            observer.event("spark_objects_left", {"prefix": run, "error": str(error)})

    def sweep(self, *, now: float, older_than_seconds: float) -> int:
        """Delete objects of earlier runs that are so old; returns how many.

        Give more than a run ever takes: runs that are under way have objects too.

        Args:
            now: the time, seconds since the epoch by the store's clock.
            older_than_seconds: how old an object must be.

        Raises:
            StoreFailed: the store cannot be asked.
        """
        with self._open_store() as store:
            old = [info.key for info in store.list(f"{self._prefix}/") if info.modified_at < now - older_than_seconds]
            delete_many(store, old)
        return len(old)

    def __repr__(self) -> str:
        return f"ObjectsExecutor({self._executor!r}, prefix={self._prefix!r})"
