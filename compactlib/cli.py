# SPDX-License-Identifier: Apache-2.0
"""The console script `compactlib`: demo, inspect, plan, compact, verify. `docs/cli.md` describes it for users.

A subclass of `_Kind` for each kind of store says how to describe, plan, open and verify the store at a path; `_Kind`
makes the answers of the four commands from that. `_store_at` detects the kind. `_OPTIONS` lists the commands and kinds
of each option. Only `compact` changes a store; the other commands work while another process writes. Each command
imports its engine itself, so that the others start quickly.

Exit codes: 0 success; 1 the store is damaged, or a part of the work could not be done; 2 the command failed, and a
line on stderr gives the reason; 130 interrupted; 141 the reader of the output closed its pipe.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeAlias

import compactlib
from compactlib.budget import Budget
from compactlib.errors import (
    AuditFailed,
    Busy,
    CompactionFailed,
    CompactlibError,
    CorruptData,
    InvalidInput,
    NotFound,
    Unsupported,
)
from compactlib.report import Table, VerifyReport

_Answer: TypeAlias = tuple[Any, str, int]
"""The output of a command with `--json`, its output for people, and its exit code."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SQLITE_BEGINNING = b"SQLite format 3\0"


class _Kind:
    """A store at a path, and the commands on it.

    Args:
        path: the store's folder or file.
        given: the options of the command line.
    """

    name: ClassVar[str]
    unit: ClassVar[str] = "records"
    package: ClassVar[str] = ""
    policies: ClassVar[Mapping[str, str]] = {}
    """The names for `--policy` and the package's classes; the first is the store's own policy."""

    def __init__(self, path: str, given: argparse.Namespace) -> None:
        self.path = path
        self.given = given
        for option, (_, kinds, _) in _OPTIONS.items():
            if getattr(given, option) is not None and self.name not in kinds:
                raise InvalidInput(f"--{option} is for a {', '.join(kinds)}; {path} is a {self.name}; leave it out")
        if given.policy not in (None, *self.policies):
            raise InvalidInput(f"{path} is a {self.name}, for which there is no policy {given.policy!r}; give one of "
                               f"{', '.join(self.policies)}")

    def described(self) -> tuple[str, dict[str, Any]]:
        """Return the store in one line, and as data; the lists in it are shown as tables."""
        raise NotImplementedError

    def planned(self) -> Any:
        """Return the plan of a compaction, a `contract.Plan`."""
        raise NotImplementedError

    def opened(self) -> AbstractContextManager[Any]:
        """Open the store for a compaction, a `contract.Compaction`."""
        raise NotImplementedError

    def verified(self) -> VerifyReport:
        """Read and check the whole store."""
        raise NotImplementedError

    def inspect(self) -> _Answer:
        title, data = self.described()
        tables = [str(Table.from_dicts([row if isinstance(row, dict) else {name: row} for row in rows], title=name))
                  for name, rows in data.items() if isinstance(rows, list) and rows]
        return data, "\n".join([title, *tables]), 0

    def plan(self) -> _Answer:
        plan = self.planned()
        return {"is_empty": plan.is_empty, "why": plan.why, "rows": plan.to_dicts()}, str(plan), 0

    def compact(self) -> _Answer:
        from compactlib.demo import progress_bar

        given, problem = self.given, ""
        where = {} if given.branch is None else {"branch": given.branch}
        try:
            with self.opened() as store, progress_bar("compact") as observer:
                report = store.compact(policy=self.policy(), observer=observer,
                                       budget=Budget(bytes_per_second=given.rate), **where)
            if report.is_partial:
                problem = f"only a part was done and committed: {report.why}"
        except CompactionFailed as error:
            report, problem = error.report, str(error)
        except Busy as busy:
            if type(busy) is not Busy:
                raise  # no other process has the store open: the budget is spent, or a database throttles
            raise Busy(f"{busy}; have that process compact it: a CompactionManager in it does, on its schedule or by "
                       f"request(name)") from busy
        if report.is_empty and not problem:
            return {"outcome": "nothing", "why": report.why, "rows": []}, f"nothing to do: {report.why}", 0
        data = {"outcome": "failed" if problem else "done", "why": problem or report.why, "rows": report.to_dicts()}
        return data, f"{report}\n{problem}".rstrip(), int(bool(problem))

    def verify(self) -> _Answer:
        report = self.verified()
        found = [finding.error for finding in report.findings if not finding.is_harmless]
        bad, others = len(found), sum(isinstance(error, Unsupported) for error in found)
        verdict = (f"{bad:,} damaged or missing; restore the files from a copy" if bad > others
                   else f"{bad:,} written by another release; nothing is known to be damaged" if bad
                   else f"{report.records:,} {self.unit} in {report.bytes_read:,} bytes, all as they were written")
        table = [str(Table.from_dicts(report.to_dicts()))] if report.findings else []
        return report.to_dicts(), "\n".join([*table, f"{self.path}: {verdict}"]), int(bad > 0)

    def policy(self) -> Any:
        """Return the policy of `--policy`; `None` for the store's own."""
        name = self.policies.get(self.given.policy, "")
        return getattr(importlib.import_module(self.package), name)() if name else None


def _date(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    if not -6e10 < seconds < 2.5e11:
        # No date has such a year: a clock was wrong, or counts in another unit.
        return f"{seconds:.0f} s"
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds")


def _sums(segments: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {name: sum(row[name] for row in segments) for name in ("entries", "live_entries", "file_bytes")}


class _RaftLog(_Kind):
    """A raft log in its own folder, or a log of a store of logs."""

    name = "raft log"
    unit = "entries"
    package = "compactlib.raftlog"
    policies: ClassVar[Mapping[str, str]] = {"auto": "", "drop": "DropDead", "seed": "SeedPolicy"}

    def described(self) -> tuple[str, dict[str, Any]]:
        from compactlib.raftlog import LogReader

        with LogReader(self.path) as reader:
            rows, snapshot, unflushed = reader.view().to_dicts(), reader.state, len(reader.unflushed)
        has_snapshot = snapshot.index >= 0
        sums = _sums(rows)
        title = (f"{self.path}: {len(rows):,} segments, {sums['entries']:,} entries ({sums['live_entries']:,} live), "
                 f"{sums['file_bytes']:,} bytes; "
                 + (f"snapshot at {snapshot.index:,} with {len(snapshot.live):,} live indexes" if has_snapshot else
                    "no snapshot yet, so everything is live")
                 + (f"; {unflushed:,} newer entries are in the store's write-ahead log" if unflushed else ""))
        return title, {
            "folder": self.path, "segments": rows, "unflushed": unflushed,
            "snapshot": {"index": snapshot.index, "live_indexes": len(snapshot.live)} if has_snapshot else None}

    def planned(self) -> Any:
        from compactlib.clock import SystemClock
        from compactlib.raftlog import DeadRatio, LogReader, SeedPolicy
        from compactlib.raftlog.policy import MajorCadence

        with LogReader(self.path) as reader:
            view = reader.view()
            if (policy := self.policy()) is not None:
                return reader.plan(policy, view=view)
        return MajorCadence(DeadRatio(), SystemClock()).plan(view, SeedPolicy())

    def opened(self) -> AbstractContextManager[Any]:
        from compactlib.raftlog import DeadRatio, LogOptions, LogReader, SegmentLog

        with LogReader(self.path) as reader:
            options = LogOptions(limits=reader.limits, trigger=DeadRatio())
        return SegmentLog(self.path, options, create=False)

    def verified(self) -> VerifyReport:
        from compactlib.raftlog import verify_log

        return verify_log(self.path)


class _StoreOfLogs(_Kind):
    """All logs of a `RaftLogStore`. A plan takes the path of a single log; only the store itself compacts its logs."""

    name = "store of raft logs"
    unit = "entries"

    def described(self) -> tuple[str, dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for path, (_, log) in self._of_each("described"):
            rows.append({"log": os.path.basename(path), "segments": len(log["segments"]), **_sums(log["segments"]),
                         "in_wal": log["unflushed"], "snapshot": log["snapshot"] and log["snapshot"]["index"]})
        return (f"{self.path}: {len(rows):,} logs with one write-ahead log; inspect one by its folder, {self._one()}",
                {"folder": self.path, "logs": rows})

    def planned(self) -> Any:
        raise InvalidInput(f"{self.path} is a {self.name}; name one of its logs, {self._one()}")

    def opened(self) -> AbstractContextManager[Any]:
        raise InvalidInput(f"{self.path} is a {self.name}, which compacts them itself: "
                           f"RaftLogStore(folder, options).log(ID).compact()")

    def verified(self) -> VerifyReport:
        reports = [report for _, report in self._of_each("verified")]
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
            # A log that was removed may be made anew at this moment.
            with contextlib.suppress(FileNotFoundError, NotALog):
                # Open, so that no new log of the same id has its inode.
                folder = os.open(path, os.O_RDONLY)
                try:
                    found = getattr(_RaftLog(path, self.given), method)()
                except CompactlibError:
                    if os.path.samestat(os.stat(path), os.fstat(folder)):
                        raise
                else:
                    if os.path.samestat(os.stat(path), os.fstat(folder)):
                        yield path, found
                finally:
                    os.close(folder)


class _BlobStore(_Kind):
    """A blob store's folder. `compact` needs the retention that its owner uses."""

    name = "blob store"
    package = "compactlib.blobstore"
    policies: ClassVar[Mapping[str, str]] = {"stats_based": "StatsBased", "greedy": "Greedy",
                                             "cost_benefit": "CostBenefit", "compact_all": "CompactAll"}

    def described(self) -> tuple[str, dict[str, Any]]:
        with self._reader() as reader:
            status, view, damage = reader.status(), reader.view(), [str(each) for each in reader.damage]
        rows = [{**row, "last_modified": _date(row["last_modified"])} for row in view.to_dicts()]
        return status.table().title, {"folder": self.path, "store": status.to_dicts()[0], "segments": rows,
                                      "damage": damage}

    def planned(self) -> Any:
        with self._reader() as reader:
            return reader.plan(self.policy())

    def opened(self) -> AbstractContextManager[Any]:
        from compactlib.blobstore import BlobStore

        if self.given.retention is None:
            raise InvalidInput(f"{self.path} does not say how long its owner keeps deletes; give --retention SECONDS, "
                               f"as in its BlobStoreConfig(deleted_retention_seconds=...)")
        return BlobStore(self.path, self._config())

    def verified(self) -> VerifyReport:
        with self._reader() as reader:
            report: VerifyReport = reader.verify()
        return report

    def _reader(self) -> Any:
        from compactlib.blobstore import BlobReader

        return BlobReader(self.path, self._config())

    def _config(self) -> Any:
        from compactlib.blobstore import BlobStoreConfig

        retention = self.given.retention
        return BlobStoreConfig() if retention is None else BlobStoreConfig(deleted_retention_seconds=retention)


class _Repository(_Kind):
    """Staging repositories: the records of each in a partition of an SQLite file, the ranges in a folder of objects."""

    name = "repository"
    package = "compactlib.staging"
    policies: ClassVar[Mapping[str, str]] = {"always": "AlwaysPolicy"}

    def __init__(self, path: str, given: argparse.Namespace) -> None:
        from compactlib.kv import SqliteStore
        from compactlib.staging import repository_in

        super().__init__(path, given)
        with contextlib.closing(SqliteStore(path, read_only=True)) as store:
            self.names = [name for name in map(repository_in, store.partitions())
                          if name is not None and given.repository in (None, name)]
        if not self.names:
            wanted = "" if given.repository is None else f" {given.repository!r}"
            raise NotFound(f"{path} is an SQLite file that holds no repository{wanted}; name another file or "
                           f"repository")

    def described(self) -> tuple[str, dict[str, Any]]:
        from compactlib.staging.errors import BranchNotFound

        rows: list[dict[str, Any]]
        if len(self.names) > 1:
            rows = [{"repository": name} for name in self.names]
            return (f"{self.path}: {len(rows):,} repositories; inspect one by --repository NAME",
                    {"path": self.path, "repositories": rows})
        with self.opened() as repository:
            name, dropped = repository.name, repository.dropped_tokens()
            rows = []
            for branch in repository.branches():
                with contextlib.suppress(BranchNotFound):  # deleted since it was listed
                    rows.append(self._row_of(repository, branch))
        return (f"{self.path}: {name}, {len(rows):,} branches, {dropped:,} dropped tokens",
                {"path": self.path, "repository": name, "branches": rows, "dropped_tokens": dropped})

    def _row_of(self, repository: Any, branch: Any) -> dict[str, Any]:
        record = branch.record()
        generation = 0 if record.commit_id is None else repository.commit(record.commit_id).generation
        return {"branch": branch.name, "generation": generation, "sealed": len(record.sealed_tokens),
                "compacted_at": _date(record.compaction_started_at), "version": record.version}

    def planned(self) -> Any:
        with self.opened() as repository:
            return repository.plan(self.policy(), branch=self.given.branch)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the repository; to compact, with the rule and the format of the existing ranges."""
        from compactlib.kv import SqliteStore
        from compactlib.objects import LocalObjects, MemoryObjects
        from compactlib.staging import CommittedRanges, Repository

        if len(self.names) > 1:
            raise InvalidInput(f"{self.path} holds {len(self.names):,} repositories; name one by --repository NAME, "
                               f"see compactlib inspect {self.path}")
        command, (name,) = self.given.command, self.names
        # `inspect` reads the records alone, so it needs no ranges.
        objects = MemoryObjects() if command == "inspect" else LocalObjects(self._objects())
        with contextlib.closing(SqliteStore(self.path, create=False, read_only=command != "compact")) as store:
            ranges = CommittedRanges(objects)
            if command == "compact":
                with Repository(store, ranges, name=name) as repository:
                    rule, range_format = repository.form_of_ranges()
                ranges = CommittedRanges(objects, rule=rule, range_format=range_format)
            with Repository(store, ranges, name=name) as repository:
                yield repository

    def verified(self) -> VerifyReport:
        with self.opened() as repository:
            report: VerifyReport = repository.verify()
        return report

    def _objects(self) -> str:
        """Return the folder of the ranges. It must exist: opening a missing folder would create it."""
        from compactlib.objects import is_local_objects

        folder: str = self.given.objects or os.path.join(os.path.dirname(self.path), "ranges")
        if not is_local_objects(folder):
            raise NotFound(f"{folder} is no folder of objects; name that of the repository's ranges by --objects "
                           f"FOLDER")
        return folder


def _store_at(given: argparse.Namespace) -> _Kind:
    """Detect the store at a path. The default is a raft log, whose reader gives the error of any other path."""
    from compactlib.blobstore import is_blob_store
    from compactlib.raftlog import logs_of_store

    path = given.path
    if is_blob_store(path):
        return _BlobStore(path, given)
    if logs_of_store(path) is not None:
        return _StoreOfLogs(path, given)
    if os.path.isfile(path):
        with open(path, "rb") as file:
            if file.read(len(_SQLITE_BEGINNING)) == _SQLITE_BEGINNING:
                return _Repository(path, given)
    return _RaftLog(path, given)


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
        from compactlib.demo import EXECUTORS, run_demo

        chosen = {name: executor for name, executor in EXECUTORS.items() if given.executor in (None, "both", name)}
        return run_demo(given.input, chosen, folder=given.folder, optional=("spark",) if given.executor is None else (),
                        max_bytes=given.max_bytes)
    answer: _Answer = getattr(_store_at(given), given.command)()
    data, text, code = answer
    # `default=str`: the fields of an error may have any type.
    print(json.dumps(data, indent=2, default=str) if given.json else text)
    return code


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9][0-9_]{0,99}(?:\.[0-9]+)?)([kmgt]i?|)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or for example 64MB or 1GiB")
    return round(float(match[1]) * _UNITS[match[2]])


_LOG, _BLOBS, _REPOSITORY = _RaftLog.name, _BlobStore.name, _Repository.name
_OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]] = {
    "repository": (("inspect", "plan", "compact", "verify"), (_REPOSITORY,), {
        "metavar": "NAME", "help": "which repository, where an SQLite file holds several"}),
    "objects": (("inspect", "plan", "compact", "verify"), (_REPOSITORY,), {
        "metavar": "FOLDER",
        "help": "of a repository: the folder of its ranges (default: ranges, next to the file)"}),
    "policy": (("plan", "compact"), (_LOG, _BLOBS, _REPOSITORY), {
        "metavar": "NAME", "help": "the policy; the first is the default: " + "; ".join(
            f"{kind.name}: {', '.join(kind.policies)}" for kind in (_RaftLog, _BlobStore, _Repository))}),
    "branch": (("plan", "compact"), (_REPOSITORY,), {
        "metavar": "NAME", "help": "of a repository (default: main)"}),
    "retention": (("plan", "compact"), (_BLOBS,), {
        "metavar": "SECONDS", "type": float,
        "help": "of a blob store: how long its owner keeps deletes; compact needs it (default of plan: a week)"}),
    "rate": (("compact",), (_LOG, _BLOBS, _REPOSITORY), {
        "metavar": "SIZE", "type": _size, "help": "the most bytes to write in a second"}),
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
    demo.add_argument("--executor", choices=("local", "spark", "both"),
                      help="where to compact (default: both, one after the other; without Spark, only here)")
    demo.add_argument("--folder", metavar="FOLDER", help="keep the logs in this folder, which must be missing or empty")
    demo.add_argument("--max-bytes", metavar="SIZE", type=_size, default=24_000_000,
                      help="the most bytes of files to read (default: 24MB)")
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
                verb.add_argument(f"--{option}", **how)
    return parser
