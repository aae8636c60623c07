# SPDX-License-Identifier: Apache-2.0
"""The console script `compactlib`: demo, inspect, plan, compact, verify. `docs/cli.md` describes it for users.

A subclass of `_Kind` for each kind of store implements the four commands on a path. `_store_at` detects the kind.
`_OPTIONS` lists the commands and kinds of each option. Only `compact` changes a store; the other commands work while
another process writes. Each command imports its engine itself, so that the others start quickly.

Exit codes: 0 success; 1 the store is damaged, or a part of the work could not be done; 2 the command failed, and a
line on stderr gives the reason; 130 interrupted; 141 the reader of the output closed its pipe.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import attrs

import compactlib
from compactlib.budget import Budget
from compactlib.errors import (
    AuditFailed,
    BudgetSpent,
    Busy,
    CompactionFailed,
    CompactlibError,
    CorruptData,
    InvalidInput,
    NotFound,
    StorageError,
    Unsupported,
)
from compactlib.files import list_folder
from compactlib.report import Table, VerifyReport

_DEMO_EXECUTORS = {"local": ("local",), "spark": ("spark",), "both": ("local", "spark")}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SQLITE_BEGINNING = b"SQLite format 3\0"


@attrs.frozen
class Result:
    """The result of a command.

    Attributes:
        data: the output with `--json`.
        text: the output for people.
        code: the exit code.
    """

    data: Any
    text: str
    code: int = 0


class _Kind(ABC):
    """A store at a path.

    Args:
        path: the store's folder or file.
        given: the options of the command line.
    """

    name: ClassVar[str]
    unit: ClassVar[str] = "records"

    def __init__(self, path: str, given: argparse.Namespace) -> None:
        self.path = path
        self.given = given
        for option, (_, kinds, _) in _OPTIONS.items():
            if getattr(given, option) is not None and self.name not in kinds:
                raise InvalidInput(f"--{option.replace('_', '-')} is for a {', '.join(kinds)}; {path} is a "
                                   f"{self.name}; leave it out")
        if given.policy not in (None, *_POLICIES.get(self.name, ())):
            raise InvalidInput(f"{path} is a {self.name}, for which there is no policy {given.policy!r}; give one of "
                               f"{', '.join(_POLICIES[self.name])}")

    @abstractmethod
    def inspect(self) -> Result:
        """Describe the store."""

    @abstractmethod
    def compaction_plan(self) -> Any:
        """Return the plan of a compaction, a `contract.Plan`."""

    @abstractmethod
    def run_compaction(self) -> Any:
        """Compact in this process; return the report."""

    @abstractmethod
    def run_verify(self) -> VerifyReport:
        """Read and check the whole store."""

    def plan(self) -> Result:
        """Show the plan of a compaction, and its reason."""
        plan = self.compaction_plan()
        return Result({"is_empty": plan.is_empty, "why": plan.why, "rows": plan.to_dicts()}, str(plan))

    def compact(self) -> Result:
        """Compact, and report the changes."""
        try:
            report = self.run_compaction()
            problem = f"only a part was done and committed: {report.why}" if report.is_partial else ""
        except CompactionFailed as error:
            report, problem = error.report, str(error)
        if report.is_empty and not problem:
            return Result({"outcome": "nothing", "why": report.why, "rows": []}, f"nothing to do: {report.why}")
        data = {"outcome": "failed" if problem else "done", "why": problem or report.why, "rows": report.to_dicts()}
        return Result(data, "\n".join([str(report), *([problem] if problem else [])]), int(bool(problem)))

    def verify(self) -> Result:
        """Read the whole store, and list the damage."""
        report = self.run_verify()
        found = [finding.error for finding in report.findings if not finding.is_harmless]
        bad, others = len(found), sum(isinstance(error, Unsupported) for error in found)
        verdict = (f"{bad:,} damaged or missing; restore the files from a copy" if bad > others
                   else f"{bad:,} written by another release; nothing is known to be damaged" if bad
                   else f"{report.records:,} {self.unit} in {report.bytes_read:,} bytes, all as they were written")
        table = [str(Table.from_dicts(report.to_dicts()))] if report.findings else []
        return Result(report.to_dicts(), "\n".join([*table, f"{self.path}: {verdict}"]), int(bad > 0))

    def policy_of(self, *kinds: Any) -> Any:
        """Return the policy of `--policy`; `None` for the store's own."""
        return next((policy for kind in kinds if (policy := kind()).name == self.given.policy), None)

    def budget(self) -> Budget:
        """Return the budget of `--rate` and `--max-bytes`."""
        return Budget(bytes_per_second=self.given.rate, total_bytes=self.given.max_bytes)

    @contextlib.contextmanager
    def copying(self) -> Iterator[dict[str, Any]]:
        """Open the executor, the budget and the observer of a compaction."""
        from compactlib.demo import opened_executor, progress_bar

        with opened_executor(self.given.executor or "local", self.given.workers) as executor, \
                progress_bar("compact") as observer:
            yield {"executor": executor, "budget": self.budget(), "observer": observer}


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds")


# --- raft logs ----------------------------------------------------------------------------------------------------


class _RaftLog(_Kind):
    """A raft log in its own folder, or a log of a store of logs."""

    name = "raft log"
    unit = "entries"

    def inspect(self) -> Result:
        from compactlib.raftlog import LogReader

        with LogReader(self.path) as reader:
            segments, snapshot = reader.view().segments, reader.state
            unflushed, others = len(reader.unflushed), [attrs.asdict(other) for other in reader.other_names()]
            rows: list[dict[str, Any]] = [
                {"segment": stats.number, "first": stats.ref.first, "last": stats.ref.last,
                 "entries": stats.entries, "live": stats.live_entries, "dead": stats.entries - stats.live_entries,
                 "live_bytes": stats.live_bytes, "file_bytes": _file_bytes(reader.path_of(stats.number))}
                for stats in segments]
        data = {"folder": self.path, "segments": rows, "unflushed": unflushed, "others": others, "snapshot": None if
                snapshot.index < 0 else {"index": snapshot.index, "live_indexes": len(snapshot.live)}}
        title = (f"{self.path}: {len(rows):,} segments, {sum(row['entries'] for row in rows):,} entries "
                 f"({sum(row['live'] for row in rows):,} live), {sum(row['file_bytes'] or 0 for row in rows):,} bytes; "
                 + ("no snapshot yet, so everything is live" if snapshot.index < 0 else
                    f"snapshot at {snapshot.index:,} with {len(snapshot.live):,} live indexes")
                 + (f"; {unflushed:,} newer entries are in the store's write-ahead log" if unflushed else ""))
        tables = [str(Table.from_dicts(rows, title=title))]
        if others:
            tables += ["", str(Table.from_dicts(others, title="Other names"))]
        return Result(data, "\n".join(tables))

    def compaction_plan(self) -> Any:
        from compactlib.clock import SystemClock
        from compactlib.raftlog import DeadRatio, DropDead, LogReader, SeedPolicy
        from compactlib.raftlog.policy import MajorCadence, plan_for

        with LogReader(self.path) as reader:
            view = reader.view()
            if (policy := self._policy()) is not None:
                return reader.plan(policy, view=view)
        is_due, why = MajorCadence(DeadRatio(), SystemClock()).judge(view)
        return plan_for(view, SeedPolicy() if is_due else DropDead(),
                        why=why if is_due else f"nothing is rewritten yet: {why}")

    def run_compaction(self) -> Any:
        from compactlib.raftlog import DeadRatio, LogOptions, LogReader, SegmentLog

        with LogReader(self.path) as reader:
            limits = reader.limits  # raises without a log; `SegmentLog` would create it
        with self.copying() as given, SegmentLog(self.path, LogOptions(limits=limits, trigger=DeadRatio())) as log:
            return log.compact(policy=self._policy(), **given)

    def run_verify(self) -> VerifyReport:
        from compactlib.raftlog import verify_log

        return verify_log(self.path)

    def _policy(self) -> Any:
        from compactlib.raftlog import CostPolicy, DropDead, RaPolicy, SeedPolicy

        return self.policy_of(DropDead, SeedPolicy, RaPolicy, CostPolicy)


class _StoreOfLogs(_Kind):
    """All logs of a `RaftLogStore`. A plan takes the path of a single log; only the store itself compacts its logs."""

    name = "store of raft logs"
    unit = "entries"

    def inspect(self) -> Result:
        rows: list[dict[str, Any]] = []
        for path, found in self._of_each("inspect"):
            segments, snapshot = found.data["segments"], found.data["snapshot"]
            sums = {name: sum(row[name] or 0 for row in segments) for name in ("entries", "live", "file_bytes")}
            rows.append({"log": os.path.basename(path), "segments": len(segments), **sums,
                         "in_wal": found.data["unflushed"], "snapshot": snapshot and snapshot["index"]})
        title = f"{self.path}: {len(rows):,} logs with one write-ahead log; inspect one by its folder, {self._one()}"
        return Result({"folder": self.path, "logs": rows}, str(Table.from_dicts(rows, title=title)))

    def compaction_plan(self) -> Any:
        raise InvalidInput(f"{self.path} is a {self.name}; name one of its logs, {self._one()}")

    def run_compaction(self) -> Any:
        raise InvalidInput(f"{self.path} is a {self.name}, which compacts them itself: "
                           f"RaftLogStore(folder, options).log(ID).compact()")

    def run_verify(self) -> VerifyReport:
        reports = [report for _, report in self._of_each("run_verify")]
        # Damage of the write-ahead log is a finding of each log.
        found = {(each.kind, each.place, each.what): each for report in reports for each in report.findings}
        return VerifyReport(tuple(found.values()), sum(each.records for each in reports),
                            sum(each.bytes_read for each in reports))

    def _one(self) -> str:
        return os.path.join(self.path, "logs", "LOG")

    def _of_each(self, method: str) -> Iterator[tuple[str, Any]]:
        """Call a method of `_RaftLog` on each log; yield path and result, but for logs removed during the call."""
        from compactlib.raftlog import logs_of_store
        from compactlib.raftlog.errors import NotALog

        for path in logs_of_store(self.path) or ():
            try:
                found = getattr(_RaftLog(path, self.given), method)()
            except (NotALog, StorageError):
                if os.path.lexists(path):
                    raise
                continue
            if os.path.lexists(path):
                yield path, found


def _file_bytes(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:  # removed by a compaction after it was listed
        return None


# --- blob stores --------------------------------------------------------------------------------------------------


class _BlobStore(_Kind):
    """A blob store's folder. `compact` needs the retention that its owner uses."""

    name = "blob store"

    def inspect(self) -> Result:
        with self._reader() as reader:
            status, view, damage = reader.status(), reader.view(), [str(each) for each in reader.damage]
        data = {"folder": self.path, "store": status.to_dicts()[0], "segments": view.to_dicts(), "damage": damage}
        return Result(data, "\n".join([str(status), str(view), *(f"damaged: {each}" for each in damage)]))

    def compaction_plan(self) -> Any:
        with self._reader() as reader:
            return reader.plan()

    def run_compaction(self) -> Any:
        from compactlib.blobstore import BlobStore, BlobStoreConfig

        if self.given.retention is None:
            raise InvalidInput(f"{self.path} does not say how long its owner keeps deletes; give --retention SECONDS, "
                               f"as in its BlobStoreConfig(deleted_retention_seconds=...)")
        config = BlobStoreConfig(deleted_retention_seconds=self.given.retention)
        try:
            with BlobStore(self.path, config, policy=self._policy()) as store, self.copying() as given:
                return store.compact(**given)
        except BudgetSpent:
            raise
        except Busy as busy:
            raise Busy(f"{busy}; have that process compact it: a CompactionManager in it does, on its schedule or by "
                       f"request(name)") from busy

    def run_verify(self) -> VerifyReport:
        with self._reader() as reader:
            report: VerifyReport = reader.verify()
        return report

    def _reader(self) -> Any:
        from compactlib.blobstore import BlobReader, BlobStoreConfig

        retention = self.given.retention
        config = BlobStoreConfig() if retention is None else BlobStoreConfig(deleted_retention_seconds=retention)
        return BlobReader(self.path, config, policy=self._policy())

    def _policy(self) -> Any:
        from compactlib.blobstore import CompactAll, CostBenefit, Greedy, StatsBased

        return self.policy_of(StatsBased, Greedy, CostBenefit, CompactAll)


# --- staging repositories -----------------------------------------------------------------------------------------


class _Repository(_Kind):
    """A staging repository: its records in a partition of an SQLite file, its ranges in a folder of objects."""

    name = "repository"

    def __init__(self, path: str, given: argparse.Namespace, partition: bytes) -> None:
        super().__init__(path, given)
        self.partition = partition

    def inspect(self) -> Result:
        with self._opened() as repository:
            survey = repository.survey()
        rows = [{"branch": each.branch, "generation": each.generation, "sealed": each.sealed_tokens,
                 "compacted_at": _date(each.compaction_started_at), "version": each.version}
                for each in survey.branches]
        data = {"path": self.path, "repository": survey.repository, "branches": rows,
                "dropped_tokens": survey.dropped_tokens}
        title = (f"{self.path}: {survey.repository or 'repository'}, {len(rows):,} branches, "
                 f"{survey.dropped_tokens:,} dropped tokens")
        return Result(data, str(Table.from_dicts(rows, title=title)))

    def compaction_plan(self) -> Any:
        with self._opened() as repository:
            return repository.plan(branch=self._branch)

    def run_compaction(self) -> Any:
        from compactlib.demo import progress_bar

        with self._opened() as repository, progress_bar("compact") as observer:
            return repository.compact(branch=self._branch, budget=self.budget(), observer=observer)

    def run_verify(self) -> VerifyReport:
        with self._opened() as repository:
            report: VerifyReport = repository.verify()
        return report

    @property
    def _branch(self) -> str:
        return self.given.branch or "main"

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the repository; to compact, with the rule and the format of the existing ranges."""
        from compactlib.kv import SqliteStore
        from compactlib.objects import LocalObjects, MemoryObjects
        from compactlib.staging import AlwaysPolicy, CommittedRanges, Repository, TombstoneCostPolicy, repository_in

        command, name = self.given.command, repository_in(self.partition) or ""
        # `inspect` reads the records alone, so it needs no ranges.
        objects = MemoryObjects() if command == "inspect" else LocalObjects(self._objects())
        with contextlib.closing(SqliteStore(self.path, create=False, read_only=command != "compact")) as store:
            ranges = CommittedRanges(objects)
            if command == "compact":
                with Repository(store, ranges, name=name) as repository:
                    rule, range_format = repository.form_of_ranges()
                ranges = CommittedRanges(objects, rule=rule, range_format=range_format)
            with Repository(store, ranges, name=name,
                            policy=self.policy_of(AlwaysPolicy, TombstoneCostPolicy)) as repository:
                yield repository

    def _objects(self) -> str:
        """Return the folder of the ranges. It must exist: opening a missing folder would create it."""
        from compactlib.objects import is_local_objects

        given = self.given.objects
        if given is not None:
            if not is_local_objects(given):
                raise NotFound(f"{given} is no folder of objects; give the folder of the repository's ranges")
            return str(given)
        parent = os.path.dirname(os.path.abspath(self.path))
        found = [name for name in list_folder(parent) if is_local_objects(os.path.join(parent, name))]
        if len(found) > 1 and "ranges" in found:
            found = ["ranges"]
        if len(found) != 1:
            raise InvalidInput(f"{self.path} is a {self.name}, and its folder has {len(found)} folders of objects; "
                               f"name that of its ranges by --objects FOLDER")
        return os.path.join(parent, found[0])


class _Repositories(_Kind):
    """An SQLite file with several repositories. `plan` and `compact` need `--partition`."""

    name = "file of several repositories"

    def __init__(self, path: str, given: argparse.Namespace, partitions: Sequence[bytes]) -> None:
        super().__init__(path, given)
        self.partitions = [partition.decode("utf-8", "surrogateescape") for partition in partitions]

    def inspect(self) -> Result:
        rows = [{"partition": partition} for partition in self.partitions]
        title = f"{self.path}: {len(rows):,} repositories; inspect one by --partition NAME"
        return Result({"path": self.path, "repositories": rows}, str(Table.from_dicts(rows, title=title)))

    def compaction_plan(self) -> Any:
        raise InvalidInput(f"{self.path} holds {len(self.partitions):,} repositories; name one by --partition NAME, "
                           f"see compactlib inspect {self.path}")

    def run_compaction(self) -> Any:
        return self.compaction_plan()

    def run_verify(self) -> VerifyReport:
        """Check each row of the key-value store by its checksum."""
        from compactlib.kv import SqliteStore

        with contextlib.closing(SqliteStore(self.path, read_only=True)) as store:
            store.audit()
            sizes = [len(entry.key) + len(entry.value) for name in store.partitions() for entry in store.scan(name)]
        return VerifyReport((), len(sizes), sum(sizes))


# --- the store at a path ------------------------------------------------------------------------------------------


def _store_at(given: argparse.Namespace) -> _Kind:
    """Detect the store at a path. The default is a raft log, whose reader gives the error of any other path.

    A folder with a single SQLite file means that file: it often holds a repository next to the folder of its objects.
    """
    from compactlib.blobstore import is_blob_store
    from compactlib.raftlog import is_log, logs_of_store

    path = given.path
    if is_blob_store(path):
        return _BlobStore(path, given)
    if logs_of_store(path) is not None:
        return _StoreOfLogs(path, given)
    if os.path.isdir(path):
        files = [each for name in list_folder(path) if _is_sqlite(each := os.path.join(path, name))]
        if files and not is_log(path):
            if len(files) > 1:
                raise InvalidInput(f"{path} holds {len(files)} SQLite files, {', '.join(files[:5])}; name one of them")
            path = files[0]
    return _in_sqlite(path, given) if _is_sqlite(path) else _RaftLog(path, given)


def _in_sqlite(path: str, given: argparse.Namespace) -> _Kind:
    from compactlib.kv import SqliteStore
    from compactlib.staging import repository_in

    wanted = None if given.partition is None else given.partition.encode("utf-8", "surrogateescape")
    with contextlib.closing(SqliteStore(path, read_only=True)) as store:
        found = [partition for partition in store.partitions()
                 if wanted in (None, partition) and repository_in(partition) is not None]
    if len(found) == 1:
        return _Repository(path, given, found[0])
    if wanted is not None:
        raise NotFound(f"{path} holds no repository in a partition {given.partition!r}; see compactlib inspect {path}")
    if not found:
        raise Unsupported(f"{path} is a key-value store without a staging repository; the commands support no other "
                          f"store in an SQLite file")
    return _Repositories(path, given, found)


def _is_sqlite(path: str) -> bool:
    try:
        # Opening a named pipe must not block.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.read(len(_SQLITE_BEGINNING)) == _SQLITE_BEGINNING
    except OSError:
        return False


# --- the command line ---------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code.

    Args:
        argv: the arguments without the program's name; by default those of this process.

    Raises:
        SystemExit: from argparse: `--help` or `--version` was given, or the arguments are wrong (code 2).
    """
    # Open the null device for a closed standard stream: else a store's file would get its number, and the output.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nowhere, "r" if name == "stdin" else "w", encoding="utf-8"))
    given = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may have characters that a terminal cannot show
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _complain("interrupted; what was finished stays")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python prints another error at exit
        return 141
    except (CompactlibError, OSError) as error:
        _complain(" ".join(str(error).split()))
        # Damage that stops `verify` is a finding of `verify`.
        return 1 if given.command == "verify" and isinstance(error, CorruptData | AuditFailed) else 2


def _complain(what: str) -> None:
    # If stderr cannot be written (a full disk, for example), the exit code still reports the failure.
    with contextlib.suppress(OSError):
        print(f"compactlib: {what}", file=sys.stderr)


def _run(given: argparse.Namespace) -> int:
    if given.command == "demo":
        from compactlib.demo import DemoSettings, run_demo

        return run_demo(DemoSettings(
            input=given.input, executors=_DEMO_EXECUTORS[given.executor or "both"],
            optional=("spark",) if given.executor is None else (), folder=given.folder,
            max_bytes=given.max_bytes, seed=given.seed, workers=given.workers))
    result: Result = getattr(_store_at(given), given.command)()
    # `default=str`: the fields of an error may have any type.
    print(json.dumps(result.data, indent=2, default=str) if given.json else result.text)
    return result.code


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9][0-9_]{0,99}(?:\.[0-9]+)?)([kmgt]i?|)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or for example 64MB or 1GiB")
    return round(float(match[1]) * _UNITS[match[2]])


_LOG, _BLOBS, _REPOSITORY = _RaftLog.name, _BlobStore.name, _Repository.name
_POLICIES = {_LOG: ("auto", "drop", "seed", "ra", "cost"),
             _BLOBS: ("stats_based", "greedy", "cost_benefit", "compact_all"),
             _REPOSITORY: ("always", "tombstone_cost")}
_OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]] = {
    "partition": (("inspect", "plan", "compact", "verify"), (_REPOSITORY,), {
        "metavar": "NAME", "help": "which repository, where an SQLite file holds several"}),
    "objects": (("inspect", "plan", "compact", "verify"), (_REPOSITORY,), {
        "metavar": "FOLDER",
        "help": "of a repository: the folder of its ranges (default: the folder of objects next to the file)"}),
    "policy": (("plan", "compact"), (_LOG, _BLOBS, _REPOSITORY), {
        "metavar": "NAME", "help": "the policy; the first is the default: " + "; ".join(
            f"{kind}: {', '.join(names)}" for kind, names in _POLICIES.items())}),
    "branch": (("plan", "compact"), (_REPOSITORY,), {
        "metavar": "NAME", "help": "of a repository (default: main)"}),
    "retention": (("plan", "compact"), (_BLOBS,), {
        "metavar": "SECONDS", "type": float,
        "help": "of a blob store: how long its owner keeps deletes; compact needs it (default of plan: a week)"}),
    "executor": (("compact",), (_LOG, _BLOBS), {
        "choices": ("local", "process", "spark"),
        "help": "where to copy: in this process, in several, or on Spark (default: local)"}),
    "workers": (("compact",), (_LOG, _BLOBS), {
        "metavar": "N", "type": int,
        "help": "how many tasks run at once (default: 1 locally, else one per processor)"}),
    "rate": (("compact",), (_LOG, _BLOBS, _REPOSITORY), {
        "metavar": "SIZE", "type": _size, "help": "the most bytes to write in a second"}),
    "max_bytes": (("compact",), (_LOG, _BLOBS, _REPOSITORY), {
        "metavar": "SIZE", "type": _size, "help": "the most bytes to write in total"}),
}
"""Options of a store's commands: the commands, the kinds of store, and how argparse reads them."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compactlib", description="Compaction primitives: try them, and maintain the stores that they made.",
        epilog="Sizes are bytes, or a number with a unit: 500kB, 64MB, 1GiB.")
    parser.add_argument("--version", action="version", version=f"compactlib {compactlib.__version__}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="command")
    demo = verbs.add_parser("demo", help="write a real log, compact it, prove that nothing was lost")
    demo.add_argument("--input", metavar="FOLDER", default=sysconfig.get_paths()["stdlib"],
                      help="read the files below it (default: Python's standard library)")
    demo.add_argument("--executor", choices=tuple(_DEMO_EXECUTORS),
                      help="where to compact (default: both, one after the other; without Spark, only here)")
    demo.add_argument("--folder", metavar="FOLDER", help="keep the logs in this folder, which must be missing or empty")
    demo.add_argument("--max-bytes", metavar="SIZE", type=_size, default=24_000_000,
                      help="the most bytes of files to read (default: 24MB)")
    demo.add_argument("--seed", metavar="N", type=int, default=0,
                      help="the seed of the choice of files and of their history")
    for name, does in (("inspect", "describe the store; changes nothing"),
                       ("plan", "show the plan of a compaction, and its reason; changes nothing"),
                       ("compact", "free the space of dead data"),
                       ("verify", "read and check the whole store; changes nothing")):
        verb = verbs.add_parser(name, help=does)
        verb.add_argument("path", metavar="PATH", help="the folder of a raft log, of a store of raft logs or of a blob "
                                                       "store, or an SQLite file with staging repositories")
        verb.add_argument("--json", action="store_true", help="plain data instead of tables")
        verb.set_defaults(**dict.fromkeys(_OPTIONS))
        for option, (commands, _, how) in _OPTIONS.items():
            if name in commands:
                verb.add_argument(f"--{option.replace('_', '-')}", **how)
    demo.add_argument("--workers", **_OPTIONS["workers"][2])
    return parser
