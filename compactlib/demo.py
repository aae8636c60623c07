# SPDX-License-Identifier: Apache-2.0
"""`compactlib demo`: a key-value store on a Raft log of real files, compacted by each executor, compared and verified.

Each command of the log puts a part of a file or deletes its key; the last command of a key is live. A copy of the log
for each executor is compacted. Then each live command is read back and compared by SHA-256, each other index must be
dead, and the compacted copies must be equal byte by byte.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import random
import shlex
import shutil  # noqa: TID251 - scratch of the demo, no data of the library
import sys
import tempfile  # noqa: TID251 - scratch of the demo, no data of the library
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import compactlib
from compactlib.errors import CompactionFailed, CompactlibError, InvalidInput, MissingDependency, NotFound, Unsupported
from compactlib.executors import LocalExecutor
from compactlib.files import list_folder
from compactlib.indexset import IndexSet
from compactlib.observer import TqdmObserver
from compactlib.raftlog import DeadEntry, Entry, LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.rewrite import Executor

_WRITTEN = "written"
"""The folder of the log before compaction. The compacted copies are named after their executors."""

_Command: TypeAlias = tuple[str, Path, int]
"""A key, a file, and the quarters of the file to put; 0 deletes the key."""
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", ".git"})
_SEGMENTS = 24
_COMMANDS_A_SYNC = 300
_MOST_PROBLEMS = 10


@contextlib.contextmanager
def _on_spark() -> Iterator[Executor]:
    """Use the process's active session, for example of a cluster, or a session with a task for each processor.

    Raises:
        MissingDependency: Spark or one of its packages is not installed.
        Unsupported: there is no Java for Spark.
    """
    from compactlib.spark import SparkExecutor, require_spark

    require_spark("a Spark session")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        yield SparkExecutor(active)
        return
    try:
        # Spark retries a killed worker, listens on this machine alone, and starts Java quickly.
        spark = SparkSession.builder.appName("compactlib").master(f"local[{os.cpu_count() or 1},4]").config(map={
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
        # Without this, or PYSPARK_PYTHON, Spark would run the first `python3` on the PATH.
        spark.sparkContext.pythonExec = sys.executable
        yield SparkExecutor(spark)
    finally:
        spark.stop()


EXECUTORS: Mapping[str, Callable[[], AbstractContextManager[Executor]]] = {
    "local": lambda: contextlib.nullcontext(LocalExecutor()), "spark": _on_spark}
"""How to open each executor of `compactlib demo`."""


def progress_bar(label: str) -> AbstractContextManager[Any]:
    """Draw the progress of a compaction on stderr, if that is a terminal and tqdm is installed."""
    with contextlib.suppress(MissingDependency):
        if sys.stderr.isatty():
            return TqdmObserver(desc=f"{label:<9}", leave=False)
    return contextlib.nullcontext()


def run_demo(source: str, executors: Mapping[str, Callable[[], AbstractContextManager[Executor]]], *,
             optional: Collection[str] = (), folder: str | None = None, max_bytes: int) -> int:
    """Run the demo and print its steps; return the exit code: 0 if everything was verified, else 1.

    Args:
        source: the folder whose files are read.
        executors: opens each executor, by name; each compacts a copy of the same log.
        optional: the executors to skip if they cannot run here.
        folder: the folder in which to keep the logs; it must be missing or empty. By default a temporary folder, which
            is removed at the end, unless there are problems.
        max_bytes: the most bytes of files to read. The demo writes about three times as many.

    Raises:
        NotFound, InvalidInput: there is no input, or the folder for the logs is not empty.
        StorageError: the disk failed.
        MissingDependency, Unsupported: an executor cannot run here.
    """
    if folder is not None:
        os.makedirs(folder, exist_ok=True)  # noqa: TID251 - scratch of the demo, no data of the library
        if names := list_folder(folder):
            raise InvalidInput(f"{folder} is not empty (it holds {names[0]!r}); name an empty or a new folder")
    place = folder or tempfile.mkdtemp(prefix="compactlib-demo-")
    is_kept = folder is not None
    done: list[str] = []
    problems: list[str] = []
    try:
        print(f"compactlib {compactlib.__version__} demo: a key-value store on a Raft log, and its compaction\n")
        history = _history(source, max_bytes, random.Random(0))
        limits = SegmentLimits(max_entries=min(max(len(history) // _SEGMENTS, 2), SegmentLimits().max_entries))
        options, written = LogOptions(limits=limits), os.path.join(place, _WRITTEN)
        live = _write(written, options, history)
        for name, opened in executors.items():
            copy = os.path.join(place, name)
            with contextlib.ExitStack() as stack:
                try:
                    executor = stack.enter_context(opened())
                except (MissingDependency, Unsupported) as error:
                    if name not in optional:
                        raise
                    _say(name, f"left out: {error}")
                    continue
                shutil.copytree(written, copy, symlinks=True, ignore=shutil.ignore_patterns("LOCK"))
                found = _compact(name, copy, options, executor)
            found += _problems(copy, len(history), live)
            if done:
                found += [f"{file} differs from that of {done[0]}"
                          for file in differing_files(os.path.join(place, done[0]), copy)]
            problems += [f"{name}: {problem}" for problem in found]
            done.append(name)
        if problems:
            is_kept = True  # for examination
            print("\n".join([*(f"  {problem}" for problem in problems[:_MOST_PROBLEMS]),
                             f"NOT VERIFIED: {len(problems):,} problems"]))
        else:
            _say("verified", f"{len(live):,} live values identical by SHA-256, {len(history) - len(live):,} dead "
                             f"entries read as DeadEntry ({', '.join(done)})"
                 + (f";\n{'':<9} the segments of {' and '.join(done)} are the same, byte by byte" if done[1:] else ""))
        if is_kept:
            _print_commands(place, done)
        return 1 if problems else 0
    finally:
        if not is_kept:
            shutil.rmtree(place, ignore_errors=True)


def _history(folder: str, max_bytes: int, rng: random.Random) -> list[_Command]:
    """Choose random files below a folder; return the commands: imports of all files, their edits, then deletes.

    The first segments have imports alone, and all of their entries die.
    """
    if not os.path.isdir(folder):
        raise NotFound(f"{folder} is not a folder; name a folder with files to read")
    found: list[tuple[str, Path, int]] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        found += [(path.relative_to(folder).as_posix(), path, path.stat().st_size)
                  for path in (Path(parent, name) for name in sorted(names))
                  if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)]
    chosen: list[tuple[str, Path]] = []
    left = max_bytes
    for key, path, size in rng.sample(found, len(found)):
        if size <= left:
            chosen.append((key, path))
            left -= size
    if not chosen:
        raise InvalidInput(f"{folder} has no file of at most {max_bytes:,} bytes among {len(found):,}; name another "
                           f"folder, or allow more bytes")
    _say("input", f"{folder}: {len(chosen):,} of {len(found):,} files, {(max_bytes - left) / 1e6:,.1f} MB")
    edits = [(key, path, quarters) for key, path in chosen for quarters in range(rng.randint(2, 4), 5)]
    deleted = rng.sample(chosen, len(chosen) // 10)
    return [*((key, path, 4) for key, path in chosen), *rng.sample(edits, len(edits)),
            *((key, path, 0) for key, path in deleted)]


def _write(folder: str, options: LogOptions, history: Sequence[_Command]) -> Mapping[int, bytes]:
    """Write the commands to a new log, and a snapshot; return the SHA-256 of each live command, by index."""
    live: dict[int, bytes] = {}
    places: dict[str, int] = {}
    with SegmentLog(folder, options) as log:
        for index, (key, path, quarters) in enumerate(history, 1):
            data = path.read_bytes() if quarters else b""
            command = b"".join([b"+" if quarters else b"-", os.fsencode(key), b"\0", data[:len(data) * quarters // 4]])
            log.append([(index, 1, command)])
            live.pop(places.pop(key, 0), None)
            if quarters:
                places[key], live[index] = index, hashlib.sha256(command).digest()
            if index % _COMMANDS_A_SYNC == 0:
                log.sync()
        log.snapshot(len(history), IndexSet.from_iterable(live))
    _say("log", f"{len(history):,} entries in {_size(folder)}; {len(live):,} are live at the snapshot")
    return live


def _compact(name: str, folder: str, options: LogOptions, executor: Executor) -> list[str]:
    """Compact a log; return the problems."""
    with progress_bar(name) as observer, SegmentLog(folder, options) as log:
        try:
            report = log.compact(policy=log.policy, executor=executor, observer=observer)
            problems = [report.why] if report.is_partial else []
        except CompactionFailed as error:
            report, problems = error.report, [str(each) for each in error.failures.values()]
    _say(name, f"nothing to compact: {report.why}" if report.is_empty else
         f"dropped {len(report.dropped):,} segments, rewrote {sum(len(group.members) for group in report.done):,} into "
         f"{len(report.done):,} in {report.seconds:.2f} s: {_size(folder)} are left")
    return problems


def _problems(folder: str, last: int, live: Mapping[int, bytes]) -> Iterator[str]:
    """Verify a compacted log; yield its problems."""
    try:
        with LogReader(folder) as reader:
            for index, answer in enumerate(reader.read_many(range(1, last + 1)), 1):
                if not (live.get(index) == hashlib.sha256(answer.payload).digest() if isinstance(answer, Entry) else
                        isinstance(answer, DeadEntry) and index not in live):
                    yield f"index {index} is not what was written: {answer!r:.100}"
            yield from (str(finding.error) for finding in reader.verify().findings if finding.error is not None)
    except CompactlibError as error:
        yield str(error)


def differing_files(folder: str, other: str) -> list[str]:
    """Return the names of files that differ between two log folders, byte by byte, or are missing in one."""
    names = {*list_folder(folder), *list_folder(other)} - {"LOCK"}
    _, different, missing = filecmp.cmpfiles(folder, other, names, shallow=False)
    return sorted([*different, *missing])


def _size(folder: str) -> str:
    with LogReader(folder) as reader:
        segments = reader.view().segments
    return f"{len(segments):,} segments of {sum(stats.file_bytes for stats in segments) / 1e6:,.1f} MB"


def _print_commands(folder: str, names: list[str]) -> None:
    first, *others = [shlex.quote(os.path.join(folder, name)) for name in (_WRITTEN, *names)]
    print("\n".join([f"\nThe logs are in {folder}. Inspect them:\n",
                     *(f"  compactlib inspect {path}" for path in (first, *others)),
                     f"  compactlib verify {others[-1] if others else first}",
                     "\nand compact the first one yourself:\n",
                     f"  compactlib plan {first}", f"  compactlib compact --policy seed {first}"]))


def _say(label: str, text: str) -> None:
    print(f"{label:<9} {text}", flush=True)
