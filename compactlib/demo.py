# SPDX-License-Identifier: Apache-2.0
"""`compactlib demo`: write a key-value store onto a Raft log, compact the log with each executor, verify and report.

1. Write: files of a folder become the commands of a key-value store. Each command is an entry of a Raft log. Each file
   is put two to four times, and a tenth of the keys are deleted at the end. The store keeps the index of each key's
   last put, so its snapshot is the set of these indexes.
2. Compact: each executor compacts a copy of the same log.
3. Verify: each live value has the SHA-256 taken at its write; each other index reads as `DeadEntry`; a store rebuilt
   from the log has the same keys at the same indexes; the executors' files are the same, byte by byte.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import random
import shlex
import shutil  # noqa: TID251 - scratch of the demo, no data of the library
import stat
import sys
import tempfile  # noqa: TID251 - scratch of the demo, no data of the library
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import attrs

import compactlib
from compactlib.clock import SystemClock
from compactlib.errors import CompactionFailed, CompactlibError, InvalidInput, MissingDependency, NotFound, Unsupported
from compactlib.files import list_folder
from compactlib.indexset import IndexSet
from compactlib.observer import TqdmObserver
from compactlib.raftlog import DeadEntry, Entry, LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.report import Table
from compactlib.rewrite import Executor

DEFAULT_MAX_BYTES = 24_000_000
"""The most bytes of files that the demo reads by default. It writes about three times as many."""
WRITTEN = "written"
"""The folder of the log before compaction. The compacted copies are named after their executors."""

OpenExecutor: TypeAlias = Callable[[str, int | None], AbstractContextManager[Executor]]

_MOST_FILES = 20_000
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", ".git"})
_SEGMENTS = 24
_SYNC_BYTES = 4_000_000
_TERM = 1
_NOT_COMPARED = frozenset({"LOCK"})
_MOST_PROBLEMS = 10


@attrs.frozen(kw_only=True)
class DemoSettings:
    """The settings of a demo.

    Attributes:
        input: the folder whose files are read.
        executors: the names of the executors; each compacts a copy of the same log.
        optional: the executors to skip if they cannot run here.
        folder: the folder in which to keep the logs; it must be missing or empty. By default a temporary folder, which
            is removed at the end.
        max_bytes: the most bytes of files to read.
        seed: determines the choice of files and their history.
        workers: how many tasks an executor runs at once; by default the executor's own number.
    """

    input: str
    executors: tuple[str, ...]
    optional: tuple[str, ...] = ()
    folder: str | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    seed: int = 0
    workers: int | None = None


@contextlib.contextmanager
def opened_executor(name: str, workers: int | None = None) -> Iterator[Executor]:
    """Open the named executor for the duration of the context.

    Args:
        name: `"local"` (threads of this process), `"process"` (processes of this machine), `"spark"` (a session of
            this process; a running one is used and left running).
        workers: how many tasks run at once; default 1 for `"local"`, else the machine's processors.

    Raises:
        MissingDependency: Spark or one of its packages is not installed.
        Unsupported: there is no Java for Spark.
    """
    from compactlib.executors import LocalExecutor, ProcessExecutor

    processors = os.cpu_count() or 1
    if name == "local":
        yield LocalExecutor(1 if workers is None else workers)
    elif name == "process":
        yield ProcessExecutor(processors if workers is None else workers)
    else:
        with _spark_session(processors if workers is None else workers) as spark:
            from compactlib.spark import SparkExecutor

            yield SparkExecutor(spark)


@contextlib.contextmanager
def _spark_session(cores: int) -> Iterator[Any]:
    from compactlib.spark import require_spark

    require_spark("a Spark session")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if cores < 1:
        raise InvalidInput(f"{cores} workers; give at least 1")
    found = SparkSession.getActiveSession()
    try:
        # Spark retries a killed worker, listens on this machine alone, and starts Java quickly.
        spark = found or SparkSession.builder.appName("compactlib").master(f"local[{cores},4]").config(map={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.host": "127.0.0.1",
            "spark.log.level": "OFF",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }).getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise Unsupported("Spark could not start Java; install a Java 17 (or later) runtime (Debian and Ubuntu: "
                          "apt-get install openjdk-17-jre-headless) and put it on the PATH") from error
    try:
        if found is None:
            # Without this, or PYSPARK_PYTHON, Spark would run the first `python3` on the PATH.
            spark.sparkContext.pythonExec = sys.executable
            # Start the workers now, so that the time of the first job does not include their start.
            spark.range(0, cores, 1, cores).mapInArrow(lambda batches: batches, "id bigint").collect()
        yield spark
    finally:
        if found is None:
            spark.stop()


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Any]:
    """Draw the progress of a compaction on stderr, if that is a terminal and tqdm is installed."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        bars = TqdmObserver(desc=f"{label:<9}", leave=False)
    except MissingDependency:
        yield None
        return
    with bars:
        yield bars


def run_demo(settings: DemoSettings, *, open_executor: OpenExecutor = opened_executor) -> int:
    """Run the demo and print its steps; return the exit code: 0 if everything was verified, else 1.

    Raises:
        NotFound, InvalidInput: there is no input, or the folder for the logs is not empty.
        StorageError: the disk failed.
        MissingDependency, Unsupported: an executor cannot run here.
    """
    folder = _prepared(settings.folder)
    is_kept = settings.folder is not None
    try:
        print(f"compactlib {compactlib.__version__} demo: a key-value store on a Raft log, and its compaction\n")
        written = _write(os.path.join(folder, WRITTEN), settings)
        runs = [run for name in settings.executors
                if (run := _compact(name, os.path.join(folder, name), written, settings, open_executor))]
        print(f"\n{Table.from_dicts([written.row, *(run.row for run in runs)])}\n")
        is_verified = _verdict(written, runs)
        is_kept = is_kept or not is_verified  # keep a wrong log for examination
        if is_kept:
            _print_commands(folder, [WRITTEN, *(run.executor for run in runs)])
        return 0 if is_verified else 1
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _prepared(folder: str | None) -> str:
    if folder is None:
        return tempfile.mkdtemp(prefix="compactlib-demo-")
    os.makedirs(folder, exist_ok=True)  # noqa: TID251 - scratch of the demo, no data of the library
    if names := list_folder(folder):
        raise InvalidInput(f"{folder} is not empty (it holds {names[0]!r}); name an empty or a new folder")
    return folder


# --- writing the log ----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Written:
    """A log before compaction, and the content that it must keep.

    Attributes:
        places: the index of each key's last put.
        digests: SHA-256 of each key's value, taken when it was written.
        last_index: the last entry's index, at which the snapshot was recorded.
        row: the log's row in the printed table.
    """

    folder: str
    limits: SegmentLimits
    places: dict[str, int]
    digests: dict[str, bytes]
    last_index: int
    row: dict[str, Any]


def _row(name: str, folder: str) -> dict[str, Any]:
    with LogReader(folder) as reader:
        segments = reader.view().segments
        return {"log": name, "entries": sum(stats.entries for stats in segments), "segments": len(segments),
                "bytes": sum(os.stat(reader.path_of(stats.number)).st_size for stats in segments)}


def _write(folder: str, settings: DemoSettings) -> _Written:
    rng, clock = random.Random(settings.seed), SystemClock()
    began = clock.monotonic()
    history = _history(_chosen_files(settings.input, settings.max_bytes, rng), rng)
    most, total = SegmentLimits(), sum(size * version // 4 for _, _, size, version in history)
    limits = SegmentLimits(max_entries=min(max(2 * len(history) // _SEGMENTS, 2), most.max_entries),
                           max_bytes=min(max(total // _SEGMENTS, 1), most.max_bytes))
    places: dict[str, int] = {}
    digests: dict[str, bytes] = {}
    index = unsynced = deleted = 0
    with SegmentLog(folder, LogOptions(limits=limits)) as log:
        for key, path, _, version in history:
            value = b""
            if version:
                try:
                    with open(path, "rb") as file:
                        value = file.read()
                except OSError:
                    continue  # unreadable, or removed since it was found
                value = value[:len(value) * version // 4]
            index += 1
            payload = _payload(key, value, is_put=bool(version))
            log.append([(index, _TERM, payload)])
            if version:
                places[key], digests[key] = index, hashlib.sha256(value).digest()
            elif places.pop(key, None) is not None:
                deleted += bool(digests.pop(key))
            unsynced += len(payload)
            if unsynced >= _SYNC_BYTES:
                log.sync()
                unsynced = 0
        log.snapshot(index, IndexSet.from_iterable(places.values()))
    row = _row(WRITTEN, folder)
    _say("log", f"{row['entries']:,} entries in {row['segments']:,} segments, {row['bytes'] / 1e6:,.1f} MB, "
                f"written in {clock.monotonic() - began:.1f} s")
    _say("snapshot", f"at index {index:,}: {len(places):,} keys are live, {deleted:,} were deleted")
    return _Written(folder=folder, limits=limits, places=places, digests=digests, last_index=index, row=row)


def _chosen_files(folder: str, max_bytes: int, rng: random.Random) -> list[tuple[str, str, int]]:
    """Choose random regular files below a folder, at most `max_bytes` together; return key, path and size of each."""
    if not os.path.isdir(folder):
        raise NotFound(f"{folder} is not a folder; name a folder with files to read")
    found: list[tuple[str, str, int]] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode) and len(found) < _MOST_FILES:
                    found.append((os.path.relpath(path, folder).replace(os.sep, "/"), path, status.st_size))
    chosen, left = [], max_bytes
    for file in rng.sample(found, len(found)):
        if file[2] <= left:
            chosen.append(file)
            left -= file[2]
    if not chosen:
        raise InvalidInput(f"{folder} has no file of at most {max_bytes:,} bytes among {len(found):,}; name another "
                           f"folder, or allow more bytes")
    _say("input", f"{folder}: {len(chosen):,} of {len(found):,} files, {(max_bytes - left) / 1e6:,.1f} MB of "
                  f"{sum(size for _, _, size in found) / 1e6:,.1f} MB")
    return sorted(chosen)


def _history(files: Sequence[tuple[str, str, int]], rng: random.Random) -> list[tuple[str, str, int, int]]:
    """Return the commands in order: key, path, size, and how many quarters of the file are put; 0 deletes the key.

    Imports of all files come in the first quarter, edits in any order after a fifth. So the first segments have imports
    alone, and all of their entries die.
    """
    placed: list[tuple[float, tuple[str, str, int, int]]] = []
    for file in files:
        versions = rng.randint(2, 4)
        times = sorted([rng.uniform(0.0, 0.25), *(rng.uniform(0.2, 1.0) for _ in range(versions - 1))])
        placed += [(time, (*file, 4 - versions + number)) for number, time in enumerate(times, 1)]
        if rng.random() < 0.1:
            placed.append((rng.uniform(times[-1], 1.0), (*file, 0)))
    return [command for _, command in sorted(placed)]


def _payload(key: str, value: bytes, *, is_put: bool) -> bytes:
    return (b"+" if is_put else b"-") + os.fsencode(key) + b"\0" + value


def _command(payload: bytes) -> tuple[str, bytes]:
    key, _, value = payload[1:].partition(b"\0")
    return os.fsdecode(key), value


# --- compacting and verifying it ----------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Run:
    executor: str
    folder: str
    row: dict[str, Any]
    problems: tuple[str, ...]


def _compact(name: str, folder: str, written: _Written, settings: DemoSettings,
             open_executor: OpenExecutor) -> _Run | None:
    clock = SystemClock()
    began = clock.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            executor = stack.enter_context(open_executor(name, settings.workers))
        except (MissingDependency, Unsupported) as error:
            if name not in settings.optional:
                raise
            _say(name, f"left out: {error}")
            return None
        ready = clock.monotonic() - began
        shutil.copytree(written.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("LOCK"))
        observer = stack.enter_context(progress_bar(name))
        with SegmentLog(folder, LogOptions(limits=written.limits)) as log:
            try:
                report = log.compact(policy=log.policy, executor=executor, observer=observer)
                failures = [report.why] if report.is_partial else []
            except CompactionFailed as error:
                report, failures = error.report, [str(each) for each in error.failures.values()]
    _say(name, (f"ready after {ready:.1f} s; " if ready >= 0.05 else "") + (
        "there was nothing to compact" if report.is_empty else
        f"dropped {len(report.dropped):,} segments, rewrote {sum(len(group.members) for group in report.done):,} into "
        f"{len(report.done):,} in {report.seconds:.2f} s"))
    row = {**_row(name, folder), "copied": report.bytes_written, "freed": report.bytes_freed, "seconds": report.seconds,
           "MB/s": report.bytes_written / 1e6 / report.seconds if report.seconds else None}
    return _Run(executor=name, folder=folder, row=row, problems=(*failures, *_problems(folder, written)))


def _problems(folder: str, written: _Written) -> Iterator[str]:
    """Verify a compacted log; yield its problems."""
    places = written.places
    dead = IndexSet.range(1, written.last_index) - IndexSet.from_iterable(places.values())
    try:
        with LogReader(folder) as reader:
            keys = sorted(places, key=places.__getitem__)
            for key, answer in zip(keys, reader.read_many([places[key] for key in keys]), strict=True):
                found = _command(answer.payload) if isinstance(answer, Entry) else None
                if found is None or found[0] != key or hashlib.sha256(found[1]).digest() != written.digests[key]:
                    yield f"{key} at index {places[key]} is not what was written: {answer!r:.100}"
            for index, answer in zip(dead, reader.read_many(dead.members()), strict=True):
                if not isinstance(answer, DeadEntry):
                    yield f"index {index} should be dead: {answer!r:.100}"
            if {_command(entry.payload)[0]: entry.index for entry in reader.entries()} != places:
                yield "a store rebuilt from the log differs from the one that wrote it"
            yield from (str(finding.error) for finding in reader.verify().findings if finding.error is not None)
    except CompactlibError as error:
        yield str(error)


def differing_files(folder: str, other: str) -> list[str]:
    """Return the names of files that differ between two log folders, byte by byte, or are missing in one."""
    names = {*list_folder(folder), *list_folder(other)} - _NOT_COMPARED
    _, different, missing = filecmp.cmpfiles(folder, other, names, shallow=False)
    return sorted([*different, *missing])


# --- reporting ----------------------------------------------------------------------------------------------------


def _verdict(written: _Written, runs: Sequence[_Run]) -> bool:
    problems = [f"{run.executor}: {problem}" for run in runs for problem in run.problems]
    problems += [f"{name} of {other.executor} differs from that of {runs[0].executor}"
                 for other in runs[1:] for name in differing_files(runs[0].folder, other.folder)]
    if problems:
        for problem in problems[:_MOST_PROBLEMS]:
            print(f"  {problem}")
        more = f" (the first {_MOST_PROBLEMS} above)" if len(problems) > _MOST_PROBLEMS else ""
        print(f"NOT VERIFIED: {len(problems):,} problems{more}")
        return False
    names = [run.executor for run in runs]
    _say("verified", f"{len(written.places):,} live values identical by SHA-256, "
                     f"{written.last_index - len(written.places):,} dead entries read as DeadEntry;")
    _say("", f"the log alone rebuilds the store ({', '.join(names)})"
             + (f";\n{'':<9} the segments of {' and '.join(names)} are the same, byte by byte" if names[1:] else ""))
    return True


def _print_commands(folder: str, names: Sequence[str]) -> None:
    quoted = [shlex.quote(os.path.join(folder, name)) for name in names]
    print(f"\nThe logs are in {folder}. Inspect them:\n")
    for name in quoted:
        print(f"  compactlib inspect {name}")
    print(f"  compactlib verify {quoted[-1]}\n\nand compact the first one yourself:\n")
    for command in ("plan", "compact --policy seed"):
        print(f"  compactlib {command} {quoted[0]}")


def _say(label: str, text: str) -> None:
    print(f"{label:<9} {text}", flush=True)
