# SPDX-License-Identifier: Apache-2.0
"""The command line and the kinds of stores: each is recognised by its files, looked at, and never changed by a look."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from compactlib.app.cli import main
from compactlib.app.kinds import kind_of
from compactlib.blobstore import BlobStore, BlobStoreConfig
from compactlib.errors import Unsupported
from compactlib.kv import SqliteStore
from compactlib.raftlog import RaftLogStore
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


def test_each_kind_is_recognised_by_its_files(tmp_path: Path) -> None:
    assert kind_of(str(blob_store(tmp_path / "blobs"))) == "blob store"
    assert kind_of(str(store_of_logs(tmp_path / "logs"))) == "store of raft logs"
    assert kind_of(str(tmp_path / "logs" / "logs" / "a")) == "raft log"
    make_log(tmp_path / "log")
    assert kind_of(str(tmp_path / "log")) == "raft log"
    assert kind_of(str(tmp_path / "nowhere")) == "raft log", "reading it says that nothing is there"
    SqliteStore(tmp_path / "kv.sqlite").close()
    with pytest.raises(Unsupported, match=r"kv\.sqlite is a SQLite file.*Repository\.status"):
        kind_of(str(tmp_path / "kv.sqlite"))


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


def test_the_plan_of_a_blob_store_goes_by_the_retention_that_its_owner_gives(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = blob_store(tmp_path / "blobs")
    kept = data(capsys, "plan", folder, "--policy", "compact_all")
    freed = data(capsys, "plan", folder, "--policy", "compact_all", "--retention", "0")
    assert sum(row["valid_bytes"] for row in kept if row["action"] != "keep") > 1.8 * sum(
        row["valid_bytes"] for row in freed if row["action"] != "keep")


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
    (["compact", "blobs"], r"its owner compacts.*BlobStore\(folder, config\)\.compact"),
    (["plan", "blobs", "--policy", "seed"], "is a blob store, for which there is no policy 'seed'; give one of stats"),
    (["plan", "log", "--policy", "greedy"], "is a raft log, for which there is no policy 'greedy'; give one of auto"),
    (["plan", "log", "--retention", "5"], "--retention is for blob stores"),
])
def test_what_does_not_fit_a_kind_is_refused_with_what_does(arguments: list[str], said: str, tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    blob_store(tmp_path / "blobs")
    make_log(tmp_path / "log")
    command, name, *rest = arguments
    code, out, err = answer(capsys, command, tmp_path / name, *rest)
    assert (code, out) == (2, "")
    assert re.search(said, err), err
