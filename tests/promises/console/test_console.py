# SPDX-License-Identifier: Apache-2.0
"""The console: what each command answers of each kind of store, its exit codes, and that errors are one line."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import compactlib
from compactlib.blobstore import Blob, BlobStore, Deleted, RecordKind
from compactlib.budget import Budget
from compactlib.cli import main
from compactlib.errors import TaskFailed
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteTask
from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects
from compactlib.raftlog import DeadEntry, Entry, LogReader, SegmentLog
from compactlib.report import VerifyReport
from compactlib.staging import Branch, CommittedRanges, Repository, SplitRule
from tests.harness.kv.sqlite_file import locked
from tests.promises.console.stores import (
    CONFIG,
    LIVE,
    MAKERS,
    ROOT,
    all_bytes,
    blob_store,
    console,
    flip_byte,
    raft_log,
    repository,
    run_console,
    store_of_logs,
)

Console = pytest.CaptureFixture[str]


def answer(capsys: Console, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def data(capsys: Console, *arguments: str | Path, code: int = 0) -> Any:
    ended, out, err = answer(capsys, *arguments, "--json")
    assert (ended, err) == (code, ""), out
    return json.loads(out)


def refusal(capsys: Console, *arguments: str | Path) -> str:
    """The one line in which a command line is refused."""
    code, out, err = answer(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("compactlib: ")
    assert err.count("\n") == 1
    return err


# --- commands that only read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "plan", "verify"])
@pytest.mark.parametrize("kind", MAKERS)
def test_reading_command_changes_no_byte(kind: str, command: str, tmp_path: Path, capsys: Console) -> None:
    path = MAKERS[kind](tmp_path)
    before = all_bytes(tmp_path)
    if kind == "store of logs" and command == "plan":
        assert "name one of its logs" in refusal(capsys, command, path)
    else:
        code, out, err = answer(capsys, command, path)
        assert (code, err) == (0, "")
        assert out.strip()
        data(capsys, command, path)
    assert all_bytes(tmp_path) == before


def test_inspect_shows_every_segment_of_a_log(tmp_path: Path, capsys: Console) -> None:
    folder = raft_log(tmp_path)
    found = data(capsys, "inspect", folder)
    assert [row["entries"] for row in found["segments"]] == [10] * 7 + [5]
    assert [row["live_entries"] for row in found["segments"]] == [2, 3, 2, 3, 0, 0, 7, 3]
    assert found["snapshot"] == {"index": 72, "live_indexes": len(LIVE)}
    text = answer(capsys, "inspect", folder)[1]
    assert text.startswith(f"{folder}: 8 segments, 75 entries (20 live)")


def test_inspect_shows_a_time_for_which_there_is_no_date(tmp_path: Path, capsys: Console) -> None:
    """Milliseconds, which a host took for seconds."""
    with BlobStore(tmp_path / "blobs", CONFIG) as store:
        store.append_replicated(RecordKind.PUT, "a", b"", op_time=1.7e12)
    [segment] = data(capsys, "inspect", tmp_path / "blobs")["segments"]
    assert segment["last_modified"] == "1700000000000 s"


def test_inspect_of_a_store_of_logs_counts_the_write_ahead_log(tmp_path: Path, capsys: Console) -> None:
    logs = data(capsys, "inspect", store_of_logs(tmp_path))["logs"]
    assert [(row["log"], row["entries"], row["in_wal"]) for row in logs] == [("a", 3, 0), ("b", 5, 1)]


def test_inspect_of_a_repository_needs_no_ranges(tmp_path: Path, capsys: Console) -> None:
    path = repository(tmp_path)
    (tmp_path / "far").mkdir()
    (tmp_path / "ranges").rename(tmp_path / "far" / "ranges")
    assert [row["branch"] for row in data(capsys, "inspect", path)["branches"]] == ["main"]
    assert "--objects FOLDER" in refusal(capsys, "plan", path)
    assert answer(capsys, "plan", path, "--objects", tmp_path / "far" / "ranges")[0] == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["branches.sqlite", "far"]


@pytest.mark.parametrize("again", [False, True])
def test_verify_leaves_out_a_log_that_is_removed_and_made_anew_meanwhile(
        again: bool, tmp_path: Path, capsys: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    path, verify = store_of_logs(tmp_path), compactlib.raftlog.verify_log

    def verified(folder: str) -> VerifyReport:
        if folder.endswith("b"):
            os.rename(folder, tmp_path / "gone")
            os.mkdir(folder)
            if again:
                shutil.copy(path / "logs" / "a" / f"{1:016d}.segment", folder)
                os.truncate(Path(folder, f"{1:016d}.segment"), 100)
        return verify(folder)

    monkeypatch.setattr("compactlib.raftlog.verify_log", verified)
    assert data(capsys, "verify", path) == []


def test_inspect_leaves_out_a_branch_that_is_deleted_meanwhile(tmp_path: Path, capsys: Console,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    path, record = repository(tmp_path), Branch.record
    with contextlib.closing(SqliteStore(path)) as store:
        owned = Repository(store, CommittedRanges(LocalObjects(tmp_path / "ranges")))

        def deleting(branch: Branch) -> Any:
            owned.delete_branch(branch.name)
            return record(branch)

        monkeypatch.setattr(Branch, "record", deleting)
        assert data(capsys, "inspect", path)["branches"] == []


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "store of logs"])
def test_plan_gives_its_reason(kind: str, tmp_path: Path, capsys: Console) -> None:
    planned = data(capsys, "plan", MAKERS[kind](tmp_path))
    assert re.search(r"\d|=", planned["why"])
    assert isinstance(planned["is_empty"], bool)


@pytest.mark.parametrize(("kind", "policies"), [
    ("raft log", ["drop", "seed"]),
    ("blob store", ["stats_based", "greedy", "cost_benefit", "compact_all"]),
    ("repository", ["always"])])
def test_named_policy_is_the_one_that_plans(kind: str, policies: list[str], tmp_path: Path, capsys: Console) -> None:
    path = MAKERS[kind](tmp_path)
    for policy in policies:
        planned = answer(capsys, "plan", path, "--policy", policy)[1]
        assert policy in planned or kind == "repository"


@pytest.mark.parametrize(("arguments", "said"), [
    (["compact", "blobs"], "blobs does not say how long its owner keeps deletes; give --retention SECONDS"),
    (["plan", "blobs", "--policy", "seed"], "is a blob store, for which there is no policy 'seed'; give one of stats"),
    (["plan", "log", "--policy", "greedy"], "is a raft log, for which there is no policy 'greedy'; give one of auto"),
    (["plan", "log", "--retention", "5"], "--retention is for a blob store; .*log is a raft log"),
    (["compact", "logs"], "compacts them itself"),
    (["inspect", "none"], "none does not exist"),
])
def test_an_invalid_argument_is_refused_with_the_valid_ones(arguments: list[str], said: str, tmp_path: Path,
                                                            capsys: Console) -> None:
    for make in MAKERS.values():
        make(tmp_path)
    command, name, *rest = arguments
    assert re.search(said, refusal(capsys, command, tmp_path / name, *rest))


def test_several_repositories_of_a_file_are_chosen_by_name(tmp_path: Path, capsys: Console) -> None:
    path = repository(tmp_path)
    with contextlib.closing(SqliteStore(path)) as store, \
            Repository(store, CommittedRanges(LocalObjects(tmp_path / "ranges")), name="second") as opened:
        opened.create_branch("main")
    assert data(capsys, "inspect", path)["repositories"] == [{"repository": "main"}, {"repository": "second"}]
    assert "--repository NAME" in refusal(capsys, "plan", path)
    assert answer(capsys, "plan", path, "--repository", "main")[0] == 0
    assert "holds no repository 'other'" in refusal(capsys, "plan", path, "--repository", "other")
    assert "--repository NAME" in refusal(capsys, "verify", path)
    assert answer(capsys, "verify", path, "--repository", "second")[0] == 0
    other = tmp_path / "other.sqlite"
    SqliteStore(other).close()
    assert "holds no repository; name another file" in refusal(capsys, "inspect", other)


# --- compact ------------------------------------------------------------------------------------------------------


def test_compact_of_a_log_carries_out_its_plan(tmp_path: Path, capsys: Console) -> None:
    folder = raft_log(tmp_path)
    planned = answer(capsys, "plan", folder, "--policy", "seed")[1]
    assert "dropped" in planned or "drop" in planned
    assert data(capsys, "compact", folder, "--policy", "seed")["outcome"] == "done"
    with LogReader(folder) as log:
        assert isinstance(log.read(1), DeadEntry)
        assert [entry.index for entry in log.entries()] == [*LIVE, 73, 74, 75]
    assert "nothing to do: " in answer(capsys, "compact", folder, "--policy", "seed")[1]


def test_compact_of_a_log_in_use_is_refused(tmp_path: Path, capsys: Console) -> None:
    folder = raft_log(tmp_path)
    with SegmentLog(folder) as log:
        log.append([(76, 1, b"not yet synced")])
        assert str(os.getpid()) in refusal(capsys, "compact", folder)
        for command in ("inspect", "plan", "verify"):
            assert answer(capsys, command, folder)[0] == 0
        assert log.read(76) == Entry(76, 1, b"not yet synced")


def test_compact_of_a_blob_store_needs_the_retention_and_the_lock(tmp_path: Path, capsys: Console) -> None:
    folder = blob_store(tmp_path)
    with BlobStore(folder, CONFIG):
        assert "have that process compact it" in refusal(capsys, "compact", folder, "--retention", "0")
    before = data(capsys, "inspect", folder)["store"]["segments"]
    assert data(capsys, "compact", folder, "--retention", "0")["outcome"] == "done"
    assert data(capsys, "inspect", folder)["store"]["segments"] < before
    with BlobStore(folder, CONFIG) as store:
        for number in range(40):
            assert isinstance(store.get(b"%d" % number), Blob if number % 2 else Deleted)


def test_compact_of_a_branch_keeps_the_rule_of_its_ranges(tmp_path: Path, capsys: Console) -> None:
    rule = SplitRule(max_bytes=1 << 12, raggedness=4)
    ranges = CommittedRanges(LocalObjects(tmp_path / "ranges"), rule=rule)
    with contextlib.closing(SqliteStore(tmp_path / "branches.sqlite")) as store, Repository(store, ranges) as opened:
        branch = opened.create_branch("main")
        for number in range(100):
            branch.put(b"%03d" % number, b"value")
        branch.commit("first")
        branch.put(b"new", b"value")
        (done,) = data(capsys, "compact", tmp_path / "branches.sqlite")["rows"]
        assert done["ranges_written"] < done["ranges_reused"]
        assert branch.get(b"new").data == b"value"


def test_compact_of_a_branch_prints_its_report_as_a_table(tmp_path: Path, capsys: Console) -> None:
    code, out, _ = answer(capsys, "compact", repository(tmp_path))
    assert (code, "ranges_written" in out.splitlines()[1]) == (0, True)
    assert "'main' is compacted: " in out.splitlines()[0]


def test_compaction_whose_every_step_failed_is_a_failure(tmp_path: Path, capsys: Console,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: LocalExecutor, tasks: Iterable[RewriteTask], **__: Any) -> Iterator[RewriteFailure]:
        for task in tasks:
            yield RewriteFailure(task.name, TaskFailed("no worker is left", task=task.name, kind="", detail=""))

    monkeypatch.setattr(LocalExecutor, "run", refuse)
    path = blob_store(tmp_path, blobs=160)
    before = all_bytes(path)
    done = data(capsys, "compact", path, "--retention", "0", "--policy", "compact_all", code=1)
    assert done["outcome"] == "failed"
    assert "no worker is left" in done["why"]
    assert all_bytes(path) == before


@pytest.mark.parametrize(("steps", "code"), [(0, 2), (1, 1)])
def test_compaction_that_ends_early_leaves_a_part(steps: int, code: int, tmp_path: Path, capsys: Console,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    run, left = LocalExecutor.run, [None] * steps

    def end(executor: LocalExecutor, tasks: Iterable[RewriteTask], *, budget: Budget, **more: Any) -> Iterator[Any]:
        if not left:
            budget.cancel()
        else:
            left.pop()
        yield from run(executor, tasks, budget=budget, **more)

    monkeypatch.setattr(LocalExecutor, "run", end)
    path = blob_store(tmp_path, blobs=160)
    ended, out, err = answer(capsys, "compact", path, "--retention", "0", "--policy", "compact_all")
    assert ended == code, out + err
    assert ("only a part was done and committed" in out) == bool(steps)
    assert "that process" not in out + err
    assert answer(capsys, "verify", path)[0] == 0


def test_interrupted_compaction_leaves_the_log_as_before(tmp_path: Path) -> None:
    folder = raft_log(tmp_path)
    # A test run that a shell put into the background ignores the signal, and so would its children.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with subprocess.Popen(console("compact", "--policy", "seed", "--rate", "1", folder, before=heed), cwd=ROOT,
                          text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        while not any(folder.glob("rewrite-*")):  # at this rate the copying takes half an hour
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "compactlib: interrupted; what was finished stays\n")
    with LogReader(folder) as reader:
        assert [entry.index for entry in reader.entries()] == [*LIVE, 73, 74, 75]


def test_console_interrupted_during_its_start_says_so() -> None:
    script = ("import runpy, sys\n"
              "class Interrupting:\n"
              "    def find_spec(self, name, path=None, target=None):\n"
              "        if name == 'compactlib.cli':\n"
              "            raise KeyboardInterrupt\n"
              "sys.meta_path.insert(0, Interrupting())\n"
              "runpy.run_module('compactlib', run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "compactlib: interrupted; nothing was begun\n")


def test_compaction_of_a_locked_repository_is_to_be_repeated(tmp_path: Path, capsys: Console,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    path = repository(tmp_path)
    monkeypatch.setattr("compactlib.kv.SqliteStore", functools.partial(SqliteStore, busy_seconds=0.0))
    with locked(path):
        said = refusal(capsys, "compact", path)
    assert "locked by another writer" in said
    assert "have that process compact it" not in said  # any process may compact a repository


# --- verify -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
def test_verify_finds_a_changed_byte(kind: str, tmp_path: Path, capsys: Console) -> None:
    path = MAKERS[kind](tmp_path)
    damaged = {"raft log": "0*7.segment", "store of logs": "wal/*", "blob store": "*.log",
               "repository": "ranges/metaranges/*"}[kind]
    victim = next(iter(sorted((tmp_path if kind == "repository" else path).glob(damaged))))
    flip_byte(victim, victim.stat().st_size // 2)
    before = all_bytes(tmp_path)
    code, out, err = answer(capsys, "verify", path)
    assert (code, err) == (1, "")
    assert victim.name.partition(".")[0] in out
    assert "damaged or missing; restore the files from a copy" in out
    assert data(capsys, "verify", path, code=1)
    assert all_bytes(tmp_path) == before


def test_verify_finds_damage_of_the_records_of_a_repository(tmp_path: Path, capsys: Console) -> None:
    path = repository(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE cells SET value = x'00'")
    assert answer(capsys, "verify", path)[0] == 1


def test_verify_finds_missing_live_entries(tmp_path: Path, capsys: Console) -> None:
    folder = raft_log(tmp_path)
    min(folder.glob("*.segment")).unlink()
    assert {row["kind"] for row in data(capsys, "verify", folder, code=1)} == {"missing"}


# --- the command line and its streams -----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["rewrite"], ["demo", "--executor", "cluster"],
                                       ["compact", "log", "--rate", "nan"], ["compact", "log", "--rate", "64 QB"]])
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], capsys: Console) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_version_is_that_of_the_package(capsys: Console) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"compactlib {compactlib.__version__}\n"


def test_documentation_names_every_option_and_no_other(capsys: Console) -> None:
    known: set[str] = set()
    for command in ("demo", "inspect", "plan", "compact", "verify"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        known.update(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    named = set(re.findall(r"--[a-z][a-z-]*", (ROOT / "docs" / "cli.md").read_text()))
    assert named == known - {"--help"}


def test_module_is_the_console_script(tmp_path: Path) -> None:
    folder = raft_log(tmp_path)
    done = subprocess.run([sys.executable, "-m", "compactlib", "inspect", str(folder)], cwd=ROOT, text=True,
                          capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{folder}: 8 segments")


def test_missing_spark_is_named_with_the_package_to_install(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a line\n")
    done = run_console("demo", "--executor", "spark", "--input", tmp_path, before="sys.modules['pyspark'] = None")
    assert done.returncode == 2
    assert done.stderr == "compactlib: a Spark session needs the package 'pyspark': pip install 'compactlib[spark]'\n"


def test_a_closed_output_pipe_ends_the_command(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(console("inspect", raft_log(tmp_path)), cwd=ROOT, stdout=out, stderr=subprocess.PIPE,
                              check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_names_that_the_output_cannot_show_are_escaped(tmp_path: Path) -> None:
    above = tmp_path / os.fsdecode(b"k\xc3\xa4se caf\xe9")
    above.mkdir()
    folder = raft_log(above)
    done = run_console("inspect", folder, before="sys.stdout.reconfigure(encoding='ascii', errors='strict')")
    assert (done.returncode, done.stderr) == (0, "")
    assert "k\\xe4se caf\\udce9/log: 8 segments" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_full_disk_of_the_output_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(console("inspect", raft_log(tmp_path)), cwd=ROOT, stdout=full, stderr=subprocess.PIPE,
                              text=True, check=False)
        silent = subprocess.run(console("verify", tmp_path / "none"), cwd=ROOT, stderr=full, check=False)
    assert done.returncode == silent.returncode == 2
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_get_no_byte_into_the_log(closed: str, tmp_path: Path) -> None:
    folder = raft_log(tmp_path)
    for arguments in (("compact", "--policy", "seed", folder), ("verify", folder)):
        done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *console(*arguments)], cwd=ROOT, check=False,
                              capture_output=True, text=True)
        assert done.returncode == 0, done
        assert "Traceback" not in done.stderr
    assert main(["verify", str(folder)]) == 0
