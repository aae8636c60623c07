# SPDX-License-Identifier: Apache-2.0
"""The command line and the kinds of stores: each is recognised by its files, looked at, and never changed by a look."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.app import raft_logs
from compactlib.app.cli import main
from compactlib.app.kinds import KINDS, store_at
from compactlib.app.stores import Asked
from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, Deleted
from compactlib.errors import Unsupported
from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects
from compactlib.raftlog import LogReader, RaftLogStore
from compactlib.staging import CommittedRanges, Repository, SplitRule
from tests.app.log_folders import contents, flip_byte, make_log

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, max_blob_bytes=0,
                         deleted_retention_seconds=0)


def blob_store(folder: Path, blobs: int = 40) -> Path:
    """A store of which every second blob was deleted."""
    with BlobStore(folder, CONFIG) as store:
        for number in range(blobs):
            store.put(b"%d" % number, b"x" * 900)
        for number in range(0, blobs, 2):
            store.delete(b"%d" % number)
    return folder


def store_of_logs(folder: Path) -> Path:
    with RaftLogStore(folder) as store:
        for name, count in (("a", 3), ("b", 5)):
            log = store.log(name)
            log.append((index, 1, b"entry") for index in range(1, count + 1))
            log.sync()
        store.flush()
        store.log("b").append([(6, 1, b"in the write-ahead log")])
    return folder


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def data(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    code, out, err = answer(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def repository(folder: Path) -> Path:
    """A repository with a commit, and a put and a delete on top of it."""
    store, ranges = SqliteStore(folder / "branches.sqlite"), CommittedRanges(LocalObjects(folder / "ranges"))
    with contextlib.closing(store), Repository(store, ranges) as opened:
        branch = opened.create_branch("main")
        branch.put(b"a", b"1")
        branch.put(b"b", b"2")
        branch.commit("first")
        branch.put(b"c", b"3")
        branch.delete(b"a")
    return folder / "branches.sqlite"


def second_repository(store: SqliteStore, folder: Path) -> None:
    ranges = CommittedRanges(LocalObjects(folder / "ranges"))
    with Repository(store, ranges, name="second") as opened:
        opened.create_branch("main")


MAKERS: dict[str, Callable[[Path], Path]] = {
    "raft log": lambda folder: make_log(folder / "log"),
    "store of raft logs": lambda folder: store_of_logs(folder / "s"),
    "blob store": lambda folder: blob_store(folder / "blobs"), "staging repository": repository}


def kind_of(path: Path) -> str:
    return store_at(Asked(path=str(path))).kind


def all_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_kind_is_recognised_by_its_files(tmp_path: Path) -> None:
    for number, (kind, make) in enumerate(MAKERS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert kind_of(make(folder)) == kind
    assert kind_of(tmp_path / "1" / "s" / "logs" / "a") == "raft log"
    assert kind_of(tmp_path / "3") == "staging repository", "the folder around the file"
    assert kind_of(tmp_path / "nowhere") == "raft log", "reading it says that nothing is there"
    assert {kind.name for kind in KINDS} - MAKERS.keys() == {"file of several repositories"}
    SqliteStore(tmp_path / "kv.sqlite").close()
    with pytest.raises(Unsupported, match=r"kv\.sqlite is a key-value store without a staging repository"):
        kind_of(tmp_path / "kv.sqlite")


def test_each_policy_that_is_named_is_the_one_that_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        if kind.policies:
            folder = tmp_path / kind.name
            folder.mkdir()
            path = MAKERS[kind.name](folder)
            for policy in set(kind.policies) - {"auto"}:
                assert data(capsys, "why", path, "--policy", policy)["policy"] == policy


@pytest.mark.parametrize("command", ["inspect", "plan", "why", "verify"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_look_changes_no_byte_and_its_answer_is_also_data(kind: str, command: str, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    path = MAKERS[kind](tmp_path)
    before = all_bytes(tmp_path)
    code, out, err = answer(capsys, command, path)
    as_data, json_out, _ = answer(capsys, command, path, "--json")
    assert all_bytes(tmp_path) == before
    if kind == "store of raft logs" and command in ("plan", "why"):
        assert code == as_data == 2
        assert "say which one" in err
        return
    assert (code, as_data, err) == (0, 0, "")
    assert out
    json.loads(json_out)


@pytest.mark.parametrize("command", ["inspect", "plan", "why", "verify", "compact"])
@pytest.mark.parametrize("kind", MAKERS)
def test_what_a_terminal_of_80_columns_shows_fits_it(kind: str, command: str, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    path = MAKERS[kind](tmp_path)
    monkeypatch.setattr("compactlib.app.terminal._columns", lambda stream: 80)
    assert main([command, str(path)]) in (0, 2)
    assert max(map(len, ["", *capsys.readouterr().out.splitlines()])) <= 80


def test_a_look_works_beside_a_running_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository(tmp_path)
    with contextlib.closing(SqliteStore(path)) as owner:
        owner.set(b"other", b"key", b"value")
        for command in ("inspect", "plan", "why", "verify"):
            assert answer(capsys, command, path)[0] == 0
        owner.set(b"other", b"key", b"more")


def test_a_branch_is_compacted_under_the_rule_that_its_ranges_were_cut_by(tmp_path: Path,
                                                                        capsys: pytest.CaptureFixture[str]) -> None:
    rule = SplitRule(max_bytes=1 << 12, raggedness=4)
    store = SqliteStore(tmp_path / "branches.sqlite")
    ranges = CommittedRanges(LocalObjects(tmp_path / "ranges"), rule=rule)
    with contextlib.closing(store), Repository(store, ranges) as opened:
        branch = opened.create_branch("main")
        for number in range(100):
            branch.put(b"%03d" % number, b"value")
        branch.commit("first")
        branch.put(b"new", b"value")
        done = data(capsys, "compact", store_path(tmp_path))
        assert [row["outcome"] for row in done] == ["done"]
        assert done[0]["ranges_written"] < done[0]["ranges_reused"]
        assert branch.get(b"new").data == b"value"
    assert "skipped: nothing to compact" in answer(capsys, "compact", store_path(tmp_path))[1]


def test_a_branch_is_compacted_in_the_format_of_its_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So what reads them as Parquet, beside the library, still finds all."""
    pytest.importorskip("pyarrow")
    from compactlib.staging import ParquetFormat

    objects = LocalObjects(tmp_path / "ranges")
    ranges = CommittedRanges(objects, range_format=ParquetFormat())
    with contextlib.closing(SqliteStore(store_path(tmp_path))) as store, Repository(store, ranges) as opened:
        branch = opened.create_branch("main")
        branch.put(b"a", b"1")
        branch.commit("first")
        branch.put(b"b", b"2")
        assert [row["outcome"] for row in data(capsys, "compact", store_path(tmp_path))] == ["done"]
        assert branch.list().keys == (b"a", b"b")
    assert [objects.get(info.key)[:4] for info in objects.list("ranges/")] == [b"PAR1"] * 2
    # A damaged range is what `verify` is for, whatever its format was.
    for info in list(objects.list("ranges/")):
        objects.delete(info.key)
    assert answer(capsys, "verify", store_path(tmp_path))[0] == 1


def store_path(folder: Path) -> Path:
    return folder / "branches.sqlite"


def test_a_repository_without_its_ranges_asks_where_they_are(tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    path = repository(tmp_path)
    (tmp_path / "ranges").rename(tmp_path / "elsewhere")
    assert answer(capsys, "plan", path)[0] == 0, "the only folder of objects beside it"
    (tmp_path / "far").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "far" / "elsewhere")
    assert answer(capsys, "inspect", path)[0] == 0, "the records alone"
    code, _, err = answer(capsys, "plan", path)
    assert code == 2
    assert "--objects FOLDER" in err
    assert answer(capsys, "verify", path, "--objects", tmp_path / "far" / "elsewhere")[0] == 0
    assert answer(capsys, "verify", path, "--objects", tmp_path)[0] == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["branches.sqlite", "far"]


def test_damage_of_an_sqlite_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE cells SET value = x'00'")
    code, out, err = answer(capsys, "verify", path)
    assert code == 1
    assert "checksum" in out + err
    assert answer(capsys, "plan", path)[0] == 2


def test_a_file_that_contradicts_itself_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository(tmp_path)
    with contextlib.closing(SqliteStore(path)) as store:
        second_repository(store, tmp_path)
    assert kind_of(path) == "file of several repositories"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE counter SET version = 1")
    code, out, err = answer(capsys, "verify", path)
    assert (code, out) == (1, "")
    assert "the counter stands at 1" in err


def test_a_file_with_several_repositories_lists_them_and_asks_which(tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    path = repository(tmp_path)
    with contextlib.closing(SqliteStore(path)) as store:
        second_repository(store, tmp_path)
    assert [row["partition"] for row in data(capsys, "inspect", path)["repositories"]] == [
        "staging/main", "staging/second"]
    code, _, err = answer(capsys, "plan", path)
    assert code == 2
    assert "say which one by --partition NAME" in err
    assert answer(capsys, "verify", path)[0] == 0
    assert "skipped" not in answer(capsys, "why", path, "--partition", "staging/main")[1]
    assert "holds no repository in a partition 'other'" in answer(capsys, "why", path, "--partition", "other")[2]


def test_partitions_of_the_host_are_no_repositories_whatever_their_names_begin_with(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repository(tmp_path)
    with contextlib.closing(SqliteStore(path)) as store:
        store.set_if(b"staging/\xff", b"key", b"value", None)
    assert "1 branches" in answer(capsys, "inspect", path)[1]
    code, _, err = answer(capsys, "inspect", path, "--partition", os.fsdecode(b"staging/\xff"))
    assert (code, "holds no repository in a partition" in err) == (2, True)


@pytest.mark.parametrize("command", ["inspect", "verify", "compact"])
def test_a_pipe_is_not_waited_for(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        assert answer(capsys, command, path)[0] == 2


@pytest.mark.parametrize("command", ["inspect", "plan", "why", "verify"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_looking_at_a_blob_store_changes_nothing(command: str, form: list[str], tmp_path: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs")
    before = contents(folder)
    code, out, err = answer(capsys, command, folder, *form)
    assert (code, err) == (0, "")
    assert out
    assert contents(folder) == before


def test_what_a_blob_store_holds_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs")
    seen = data(capsys, "inspect", folder)
    with BlobStore(folder, CONFIG) as store:
        assert seen["store"]["records"] == store.status().records
        assert [row["segment"] for row in seen["segments"]] == [str(each.name) for each in store.view().segments]
    assert seen["damage"] == []
    assert "blob store blobs, read: " in answer(capsys, "inspect", folder)[1]


def test_a_blob_plan_uses_the_given_retention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs")
    kept = data(capsys, "plan", folder, "--policy", "compact_all")
    freed = data(capsys, "plan", folder, "--policy", "compact_all", "--retention", "0")
    assert sum(row["valid_bytes"] for row in kept if row["action"] != "keep") > 1.8 * sum(
        row["valid_bytes"] for row in freed if row["action"] != "keep")


def test_a_blob_store_without_owner_needs_a_retention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs")
    before = data(capsys, "inspect", folder)["store"]["segments"]
    assert "give --retention SECONDS" in answer(capsys, "compact", folder)[2]
    assert data(capsys, "inspect", folder)["store"]["segments"] == before
    done = data(capsys, "compact", folder, "--retention", "0")
    assert {row["outcome"] for row in done} == {"done"}
    assert data(capsys, "inspect", folder)["store"]["segments"] < before
    ended = (answer(capsys, "compact", folder, "--retention", "0")[1] for _ in range(10))
    assert any("skipped: " in each for each in ended), "in the end, there is nothing"
    with BlobStore(folder, CONFIG) as store:
        for number in range(40):
            assert isinstance(store.get(b"%d" % number), Blob if number % 2 else Deleted)
        assert store.verify().is_sound


@pytest.mark.parametrize(("most", "code"), [(1_500, 2), (8_000, 1)])
def test_a_budget_that_ends_a_compaction_is_told_and_no_other_process_is_named(
        most: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs")
    ended, out, err = answer(capsys, "compact", folder, "--retention", "0", "--policy", "compact_all",
                             "--max-bytes", str(most))
    assert ended == code, out
    assert ("what was done stays" in out) == (code == 1)
    assert f"total of {most} bytes" in out + err
    assert "that process" not in out + err


def test_compact_says_who_has_a_blob_store_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs")
    with BlobStore(folder, CONFIG) as store:
        before = store.status().segments
        code, _, err = answer(capsys, "compact", folder, "--retention", "0")
        assert code == 2
        assert f"is open for writing by process {os.getpid()}" in err
        assert "have that process compact it: a CompactionManager in it does" in err
        assert store.status().segments == before


def test_why_names_the_gate_its_value_and_its_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs", blobs=10)
    code, out, _ = answer(capsys, "why", folder)
    assert code == 0
    assert "min_used_fraction=0.5" in out
    assert "left, the newest one, still written to" in out
    seen = data(capsys, "why", folder)
    assert seen["is_empty"]
    assert not seen["taken"]
    make_log(tmp_path / "log")
    assert answer(capsys, "why", tmp_path / "log", "--policy", "drop")[0] == 0
    log = data(capsys, "why", tmp_path / "log")
    assert sorted(log["taken"] + [int(each) for names in log["left"].values() for each in names]) == [
        row["segment"] for row in data(capsys, "inspect", tmp_path / "log")["segments"]]


def test_damage_in_a_blob_store_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs")
    segment = min(folder.glob("*.log"))
    flip_byte(segment, segment.stat().st_size // 2)
    code, out, _ = answer(capsys, "verify", folder)
    assert code == 1
    assert "damaged or missing; restore the files from a copy" in out


def test_a_store_of_logs_lists_them_and_asks_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store_of_logs(tmp_path / "logs")
    assert [(row["log"], row["entries"], row["in_wal"]) for row in data(capsys, "inspect", folder)["logs"]] == [
        ("a", 3, 0), ("b", 5, 1)]
    assert "2 logs with one write-ahead log" in answer(capsys, "inspect", folder)[1]
    for command, said in (("plan", "say which one"), ("why", "say which one"), ("compact", "compacts them itself")):
        code, _, err = answer(capsys, command, folder)
        assert code == 2
        assert said in err


@pytest.mark.parametrize(("arguments", "said"), [
    (["compact", "blobs"], "blobs does not say how long its owner keeps deletes; give --retention SECONDS"),
    (["plan", "blobs", "--policy", "seed"], "is a blob store, for which there is no policy 'seed'; give one of stats"),
    (["plan", "log", "--policy", "greedy"], "is a raft log, for which there is no policy 'greedy'; give one of auto"),
    (["plan", "log", "--retention", "5"], "--retention is for a blob store; .*log is a raft log"),
])
def test_what_does_not_fit_a_kind_is_refused_with_what_does(arguments: list[str], said: str, tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    blob_store(tmp_path / "blobs")
    make_log(tmp_path / "log")
    command, name, *rest = arguments
    code, out, err = answer(capsys, command, tmp_path / name, *rest)
    assert (code, out) == (2, "")
    assert re.search(said, err), err


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize("when", ["before it is looked at", "meanwhile"])
def test_a_log_that_its_store_removes_during_a_look_is_no_damage(
        command: str, when: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store_of_logs(tmp_path / "s")

    def open_and_remove(path: str) -> LogReader:
        if not path.endswith("a"):
            return LogReader(path)
        reader = LogReader(path) if when == "meanwhile" else None
        shutil.rmtree(path)
        return reader or LogReader(path)

    monkeypatch.setattr(raft_logs, "LogReader", open_and_remove)
    code, out, err = answer(capsys, command, folder)
    assert (code, err) == (0, ""), out
    assert not {"a", "missing"}.intersection(out.split())


def test_all_damage_of_a_repository_is_found_whatever_of_it_is_gone(tmp_path: Path,
                                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """Also what a compaction would need before anything else."""
    store = repository(tmp_path)
    (metarange,) = (tmp_path / "ranges" / "metaranges").iterdir()
    for is_damaged in (True, False):
        if is_damaged:
            flip_byte(metarange, metarange.stat().st_size // 2)
        else:
            metarange.unlink()
        code, out, err = answer(capsys, "verify", store)
        assert (code, err) == (1, "")
        assert metarange.name in out
        assert "damaged or missing; restore" in out
