# SPDX-License-Identifier: Apache-2.0
"""`ObjectsExecutor`: tasks whose files lie in an object store, for workers that share no folder with this process.

A worker takes the files that a task reads into a scratch folder, runs the task there, and puts what it wrote under a
key of its attempt, so that a retry or a late attempt meets no other.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import tempfile  # noqa: TID251 - scratch of one attempt, no data of the library
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from compactlib._arguments import require_whole
from compactlib.blobstore.compaction.rewrite.task import CopyRecords
from compactlib.blobstore.index.index_file import read_index
from compactlib.blobstore.model.names import place_of_index_file, segment_of_log_file
from compactlib.blobstore.segment.descriptor import read_descriptor
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, Unsupported
from compactlib.executors import Attempt, Executor, RewriteFailure, RewriteResult, RewriteTask, RewrittenFile
from compactlib.executors.tasks import answers_of, checked_names, new_attempt_id
from compactlib.files.disk import Files, LocalFiles, list_folder
from compactlib.objects import ObjectStore
from compactlib.objects.folder import WorkingCopy
from compactlib.objects.store import delete_many, delete_older
from compactlib.objects.stored_file import DEFAULT_PART_BYTES, StoredFile, put_file, take_file, take_ranges
from compactlib.raftlog.compaction.rewrite import CompactSegments
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.segment.liveness import live_positions
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_set import list_segments
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling

OpenStore: TypeAlias = Callable[[], ObjectStore]
"""Opens the object store; picklable, since workers call it too: `functools.partial(LocalObjects, folder)`, or a
function that makes a `RemoteObjects`."""

_SCHEME = "object://"
"""Begins the path of a file in an object store, in a `RewriteResult` on its way from a worker."""


@attrs.frozen
class TaskFiles:
    """Which files a kind of task reads, and how it is sent to read and write elsewhere. Picklable if its functions are.

    Attributes:
        kind: the class of the tasks.
        inputs: the paths of the files that a task reads.
        folder: where a task writes.
        moved: the same task, with each input under its own name in this folder, and writing there as well.
        head_bytes: how much of the beginning of a file that it wrote says what it holds; see `StoredFile`. `None` if
            files have to be read whole.
        needed: where what it reads of an input begins and ends, ascending, given the path of one that has its head;
            `None` if inputs have to be whole.
    """

    kind: type
    inputs: Callable[[Any], Sequence[str]]
    folder: Callable[[Any], str]
    moved: Callable[[Any, str], Any]
    head_bytes: Callable[[str], int | None] | None = None
    needed: Callable[[Any, str], Iterable[tuple[int, int]]] | None = None


def segment_head_bytes(path: str) -> int | None:
    """How much of a sealed segment of a Raft log says what it holds; `None` where all of it has to be read."""
    with SegmentReader(path) as reader:
        loaded = reader.loaded
        return loaded.header.data_start if loaded.sealed and loaded.header is not None else None


def store_heads(folder: str) -> dict[str, int]:
    """Of which files in a folder of a Raft log or a blob store the beginnings are enough for a plan; see `Heads`.

    They are sealed segments: those of a log, but the newest, and those of a blob store, but the last, whose index files
    say what they hold from end to end. What is damaged has to be whole. Raises `StorageError` if one cannot be read.
    """
    found: dict[str, int] = {}
    for number in list_segments(folder)[:-1]:
        path = os.path.join(folder, segment_name(number))
        with contextlib.suppress(CorruptData, Unsupported):
            if not os.path.islink(path) and (head := segment_head_bytes(path)) is not None:
                found[segment_name(number)] = head
    with contextlib.suppress(CorruptData, Unsupported):
        found |= _indexed_segments(folder)
    return found


def _indexed_segments(folder: str) -> dict[str, int]:
    descriptor = read_descriptor(folder)
    names = list_folder(folder)
    ends = dict.fromkeys(sorted(filter(None, map(segment_of_log_file, names)))[:-1], SEGMENT_HEADER_BYTES)
    for place in sorted(filter(None, map(place_of_index_file, names))):
        if descriptor is not None and ends.get(place.segment) == place.offset:
            path = os.path.join(folder, place.segment.index_file(place.offset))
            with contextlib.suppress(CorruptData, Unsupported):
                ends[place.segment] = read_index(path, descriptor.incarnation).end
    return {segment.log_file: SEGMENT_HEADER_BYTES for segment, end in ends.items()
            if end == os.stat(os.path.join(folder, segment.log_file)).st_size}


def _moved_segments(task: CompactSegments, folder: str) -> CompactSegments:
    sources = tuple(attrs.evolve(source, path=os.path.join(folder, os.path.basename(source.path)))
                    for source in task.sources)
    return attrs.evolve(task, folder=folder, sources=sources)


def _live_payloads(task: CompactSegments, path: str) -> Iterator[tuple[int, int]]:
    for source in task.sources:
        if os.path.basename(source.path) == os.path.basename(path):
            with SegmentReader(path) as reader:
                columns = reader.index.columns
                for position in live_positions(reader.index, source.live, source.ref):
                    yield columns.offsets[position], columns.offsets[position] + columns.lengths[position]


def _picked_records(task: CopyRecords, path: str) -> Iterator[tuple[int, int]]:
    for source in task.sources:
        if source.segment.log_file == os.path.basename(path):
            offsets, sizes, _ = source.columns()
            yield from zip(offsets, map(operator.add, offsets, sizes), strict=True)


def _segments(task: CompactSegments) -> list[str]:
    return [source.path for source in task.sources]


def _log_files(task: CopyRecords) -> list[str]:
    return [os.path.join(task.folder, source.segment.log_file) for source in task.sources]


def _moved_records(task: CopyRecords, folder: str) -> CopyRecords:
    return attrs.evolve(task, folder=folder)


def _log_head(path: str) -> int:
    return SEGMENT_HEADER_BYTES


_folder = operator.attrgetter("folder")
KNOWN_TASKS: tuple[TaskFiles, ...] = (
    TaskFiles(CompactSegments, _segments, _folder, _moved_segments, segment_head_bytes, _live_payloads),
    TaskFiles(CopyRecords, _log_files, _folder, _moved_records, _log_head, _picked_records),
)
"""The tasks of this library that read and write files: `ObjectsExecutor` carries them unless it is given others."""


@attrs.frozen(kw_only=True)
class _CarriedTask:
    """A task in a scratch folder: `inputs` are the files that it reads, by their names, and the keys of those that it
    writes begin with `outputs`."""

    name: str
    task: RewriteTask
    kind: TaskFiles
    open_store: OpenStore
    inputs: Mapping[str, StoredFile]
    outputs: str
    part_bytes: int
    scratch: str | None

    def run(self, attempt: Attempt) -> RewriteResult:
        scratch = tempfile.TemporaryDirectory(prefix="compactlib-task-", dir=self.scratch, ignore_cleanup_errors=True)
        with scratch as folder, self.open_store() as store:
            for name, stored in self.inputs.items():
                path = os.path.join(folder, name)
                take_file(store, stored, path, LocalFiles(), only_head=self.kind.needed is not None)
                if self.kind.needed is not None and stored.head_bytes is not None:
                    take_ranges(store, stored, path, LocalFiles(), self.kind.needed(self.task, path))
            result: RewriteResult = self.kind.moved(self.task, folder).run(attempt)
            files = tuple(self._put(store, file, attempt, number) for number, file in enumerate(result.files))
        return attrs.evolve(result, files=files)

    def _put(self, store: ObjectStore, file: RewrittenFile, attempt: Attempt, number: int) -> RewrittenFile:
        stored = put_file(store, f"{self.outputs}/{attempt.id}/{number}", file.path, self.part_bytes,
                          head_bytes=None if self.kind.head_bytes is None else self.kind.head_bytes(file.path))
        return attrs.evolve(file, path=_SCHEME + json.dumps([os.path.basename(file.path), *stored.told()]))


class ObjectsExecutor:
    """An `Executor` whose tasks another one runs where no folder can be shared: their files lie in an object store.

    Results name files in the folder that the task named. When a run ends, its objects are deleted; what could not be
    (the event `spark_objects_left`), and what an attempt puts after that, `sweep` or `ObjectFolder.reclaim` removes.
    Memory, here and in each worker: one part of `part_bytes`.

    Args:
        executor: who runs the tasks; a `SparkExecutor` needs nothing else.
        open_store: opens the object store, here and on the workers.
        copy: the working copy in which the store was opened: `ObjectFolder(..., heads=store_heads).opened(
            only_heads=True)` gives it.
        prefix: what the keys of all runs begin with, for them alone; without a `copy`.
        kinds: the kinds of tasks it can carry.
        files: the disk of this process.
        part_bytes: the largest object that is put, >= 1.
        scratch: where workers make their scratch folders; default their system's own place.
    """

    def __init__(self, executor: Executor, open_store: OpenStore, *, copy: WorkingCopy | None = None,
                 prefix: str = "rewrites", kinds: Sequence[TaskFiles] = KNOWN_TASKS, files: Files | None = None,
                 part_bytes: int = DEFAULT_PART_BYTES, scratch: str | None = None) -> None:
        require_whole("part_bytes", part_bytes, 1)
        self._executor = executor
        self._open_store = open_store
        self._copy = copy
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
        known: list[tuple[RewriteTask, TaskFiles]] = []
        for task in checked_names(tasks):
            kind = next((kind for kind in self._kinds if isinstance(task, kind.kind)), None)
            if kind is None:
                raise InvalidInput(f"task {task.name!r} is a {type(task).__name__}, and nothing says which files it "
                                   f"reads; give ObjectsExecutor a TaskFiles for it")
            known.append((task, kind))
        return self._run(known, budget, telling(observer))

    def _run(self, tasks: Sequence[tuple[RewriteTask, TaskFiles]], budget: Budget | None,
             observer: Observer) -> Generator[RewriteOutcome, None, None]:
        if not tasks:
            return
        try:
            store = self._open_store()
        except CompactlibError as error:
            yield from (RewriteFailure(task.name, error) for task, _ in tasks)
            return
        copy = self._copy
        run = f"{self._prefix}/{new_attempt_id()}" if copy is None else copy.new_key()
        outputs = f"{run}/out" if copy is None else copy.new_key()
        folders = {task.name: kind.folder(task) for task, kind in tasks}
        with store:
            try:
                carried: list[RewriteTask] = []
                sent: dict[str, StoredFile] = {}
                for task, kind in tasks:
                    try:
                        for path in kind.inputs(task):
                            known = sent.get(path) or (None if copy is None else copy.stored(path))
                            sent[path] = known or put_file(
                                store, f"{run}/in/{new_attempt_id()}", path, self._part_bytes)
                        inputs = {os.path.basename(path): sent[path] for path in kind.inputs(task)}
                    except CompactlibError as error:
                        yield RewriteFailure(task.name, error)
                        continue
                    carried.append(_CarriedTask(
                        name=task.name, task=task, kind=kind, inputs=inputs, outputs=outputs,
                        open_store=self._open_store, part_bytes=self._part_bytes, scratch=self._scratch))
                # Where the caller leaves early: what runs has to end before its objects go.
                with contextlib.closing(answers_of(self._executor, carried, budget=budget,
                                                   observer=observer)) as outcomes:
                    for outcome in outcomes:
                        yield self._taken(store, outcome, folders[outcome.task])
            finally:
                try:
                    delete_many(store, [info.key for info in store.list(f"{run}/")])
                except CompactlibError as error:
                    observer.event("spark_objects_left", {"prefix": run, "error": str(error)})

    def _taken(self, store: ObjectStore, outcome: RewriteOutcome, folder: str) -> RewriteOutcome:
        """The outcome with its files in the task's own folder."""
        if not isinstance(outcome, RewriteResult):
            return outcome
        taken: list[RewrittenFile] = []
        try:
            for file in outcome.files:
                if not file.path.startswith(_SCHEME):
                    raise InvalidInput(f"{file.path!r} names no file in an object store; its task ran without "
                                       f"ObjectsExecutor")
                name, *told = json.loads(file.path.removeprefix(_SCHEME))
                path = os.path.join(folder, os.path.basename(name))
                if self._copy is None:
                    take_file(store, StoredFile.of(told), path, self._files)
                else:
                    self._copy.take(StoredFile.of(told), path)
                taken.append(attrs.evolve(file, path=path))
        except CompactlibError as error:
            return RewriteFailure(outcome.task, error)
        return attrs.evolve(outcome, files=tuple(taken))

    def sweep(self, *, now: float, older_than_seconds: float) -> int:
        """Delete objects of earlier runs that are so old at a time by the store's clock: more than a run ever takes, as
        those under way have some. Returns how many; raises what `delete_older` does."""
        with self._open_store() as store:
            return delete_older(store, f"{self._prefix}/", now, older_than_seconds)

    def __repr__(self) -> str:
        return f"ObjectsExecutor({self._executor!r}, prefix={self._prefix!r})"
