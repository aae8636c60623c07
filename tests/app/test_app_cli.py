# SPDX-License-Identifier: Apache-2.0
"""The command line: what each command answers, its exit codes, and that errors are one line."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import compactlib
from compactlib.app.cli import main
from compactlib.raftlog import DeadEntry, Entry, LogReader, RaftLogStore, SegmentLog, StoreOptions
from compactlib.raftlog.model.names import segment_name
from tests.app.log_folders import (
    LIVE,
    ROOT,
    compactlib_process,
    contents,
    flip_byte,
    make_log,
    run_compactlib,
    wait_for_match,
)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def rows(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    code, out, err = answer(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line in which a command line is refused."""
    code, out, err = answer(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("compactlib: ")
    assert err.count("\n") == 1
    return err


# -- inspect


def test_inspect_shows_every_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    code, out, err = answer(capsys, "inspect", folder)
    assert (code, err) == (0, "")
    title, header, _, *lines = out.splitlines()
    assert title.startswith(f"{folder}: 8 segments, 75 entries (20 live), ")
    assert title.endswith("snapshot at 72 with 17 live indexes")
    assert header.split() == ["segment", "first", "last", "entries", "live", "dead", "payload_bytes", "live_bytes",
                              "file_bytes"]
    assert lines[0].split()[:8] == ["1", "1", "10", "10", "2", "8", "1,000", "200"]
    assert len(lines) == 8


def test_inspect_gives_the_same_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    seen = rows(capsys, "inspect", folder)
    assert (seen["folder"], seen["others"]) == (str(folder), [])
    assert seen["snapshot"] == {"index": 72, "live_indexes": 17}
    assert [segment["live"] for segment in seen["segments"]] == [2, 3, 2, 3, 0, 0, 7, 3]
    assert seen["segments"][6]["file_bytes"] == (folder / segment_name(7)).stat().st_size


def test_inspect_names_what_else_lies_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    assert main(["compact", "--policy", "seed", str(folder)]) == 0
    (folder / "0000000000000007-0000000000000008.compacting").touch()
    (folder / "rewrite-1").mkdir()
    for name in ("SNAPSHOT.tmp", "HARD_STATE", "HARD_STATE.tmp", "GAP", "notes.txt"):
        (folder / name).touch()
    capsys.readouterr()
    others = {other["name"]: other["meaning"] for other in rows(capsys, "inspect", folder)["others"]}
    assert others == {
        segment_name(2): f"old name of a segment merged into {segment_name(1)}",
        segment_name(3): f"old name of a segment merged into {segment_name(1)}",
        segment_name(4): f"old name of a segment merged into {segment_name(1)}",
        "0000000000000007-0000000000000008.compacting": "segments 7, 8 merged, not yet in place",
        "rewrite-1": "what a compaction is writing, or was when it was interrupted",
        "SNAPSHOT.tmp": "left by an interrupted step; opening the log for writing removes it",
        "HARD_STATE.tmp": "left by an interrupted step; opening the log for writing removes it",
        "notes.txt": "does not belong to the log",
    }
    assert "Other names\n" in answer(capsys, "inspect", folder)[1]


def test_inspect_before_the_first_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log", snapshot=False)
    assert "no snapshot yet, so everything is live" in answer(capsys, "inspect", folder)[1]
    assert rows(capsys, "inspect", folder)["snapshot"] is None


def test_a_log_without_entries_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "log"
    SegmentLog(folder).close()
    assert rows(capsys, "inspect", folder)["segments"] == []
    assert rows(capsys, "inspect", folder)["others"] == [
        {"name": segment_name(1), "meaning": "a segment without an entry that counts"}]
    assert rows(capsys, "plan", folder) == []
    assert answer(capsys, "verify", folder)[0] == 0


# -- plan


def test_plan_is_a_dry_run_under_the_log_s_own_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    before = contents(folder)
    planned = [(row["action"], row["members"]) for row in rows(capsys, "plan", folder)]
    # Ten entries fit into one of this log's segments: 2 + 3 + 2 + 3 of the first four, with 7 no more.
    assert planned == [("merge", [1, 2, 3, 4]), ("drop", [5]), ("drop", [6]), ("keep", [7]), ("keep", [8])]
    assert contents(folder) == before


def test_plan_of_a_minor_compaction_only_drops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    actions = [row["action"] for row in rows(capsys, "plan", folder, "--policy", "drop")]
    assert actions == ["keep"] * 4 + ["drop"] * 2 + ["keep"] * 2


@pytest.mark.parametrize("policy", ["seed", "ra", "cost"])
def test_plan_names_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    folder = make_log(tmp_path / "log")
    code, out, _ = answer(capsys, "plan", folder, "--policy", policy)
    assert code == 0
    assert out.startswith(f"{policy}(")
    assert "at snapshot 72: drop 2" in out


# -- compact


@pytest.mark.parametrize("options", [(), ("--executor", "local", "--workers", "2"),
                                     ("--executor", "process", "--workers", "1")])
def test_compact_does_what_was_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                       options: tuple[str, ...]) -> None:
    folder = make_log(tmp_path / "log")
    done = rows(capsys, "compact", folder, "--policy", "seed", *options)
    assert [(row["outcome"], row["action"], row["members"]) for row in done] == [
        ("done", "rewritten", [1, 2, 3, 4]), ("done", "dropped", [5]), ("done", "dropped", [6]),
        ("done", "kept", [7]), ("done", "kept", [8])]
    with LogReader(folder) as reader:
        assert [entry.index for entry in reader.entries()] == [*LIVE, 73, 74, 75]
        assert reader.read(1) == DeadEntry(1, 72)
    assert answer(capsys, "verify", folder)[0] == 0


def test_compact_prints_a_table_and_then_has_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    code, out, err = answer(capsys, "compact", folder, "--policy", "seed")
    assert (code, err) == (0, "")
    assert out.startswith("seed(max_sources=8, reclaim_fraction=0.5) at snapshot 72 (neighbours fit")
    assert "): dropped 2, rewrote 4 segments into 1, kept 2" in out
    before = contents(folder)
    code, out, err = answer(capsys, "compact", folder, "--policy", "seed")
    assert (code, err) == (0, "")
    assert out.startswith("skipped: none of the 2 segments up to snapshot 72 is wholly dead; of 2 that hold")
    assert {name: content for name, (content, _) in contents(folder).items()} == {
        name: content for name, (content, _) in before.items()}


def test_compact_rewrites_by_itself_when_more_is_dead_than_alive(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    assert "rewrite 4 into 1" in answer(capsys, "plan", folder)[1]
    assert "at snapshot 72 (7,420 bytes dead beside 2,380 live" in answer(capsys, "compact", folder)[1]
    mostly_live = tmp_path / "mostly"
    with SegmentLog(mostly_live) as log:
        log.extend((index, 1, b"x" * 100) for index in range(1, 10))
        log.record_snapshot(9, range(2, 10))
    assert "nothing to do: the log has 1 segment" in answer(capsys, "plan", mostly_live)[1]
    assert "skipped: the log has 1 segment, and the newest" in answer(capsys, "compact", mostly_live)[1]


def test_a_budget_too_small_for_everything_leaves_a_part_for_the_next_run(tmp_path: Path,
                                                                        capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    code, out, err = answer(capsys, "compact", folder, "--policy", "seed", "--max-bytes", "100B")
    assert (code, err) == (1, "")
    assert "dropped 2, rewrote 0 segments into 0, kept 2, 1 groups FAILED" in out
    assert answer(capsys, "verify", folder)[0] == 0
    # The drops are done; a budget that allows nothing that is left is an error.
    told = refusal(capsys, "compact", folder, "--policy", "seed", "--max-bytes", "100")
    assert "the budget had 100 bytes left" in told
    assert "give at least" in told
    assert answer(capsys, "compact", folder, "--policy", "seed", "--max-bytes", "1MB", "--rate", "1GB")[0] == 0


def test_compact_before_the_first_snapshot_has_nothing_to_do(tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log", snapshot=False)
    assert answer(capsys, "compact", folder) == (
        0, "skipped: no snapshot was recorded yet, so nothing in 8 segments is dead; record one "
           "(record_snapshot, or RaftLog.snapshot)\n", "")


def test_compact_of_a_log_that_is_in_use_is_refused_while_the_others_look(tmp_path: Path,
                                                                         capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    with SegmentLog(folder) as log:
        log.append(76, 1, b"not yet synced")
        assert str(folder) in refusal(capsys, "compact", folder)
        for command in ("inspect", "plan", "verify"):
            assert answer(capsys, command, folder)[0] == 0
        assert log.read(76) == Entry(76, 1, b"not yet synced")


def test_interrupted_in_mid_copy_the_log_is_as_before(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    # A test run that a shell put into the background ignores the signal, and so would its children.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with subprocess.Popen(compactlib_process("compact", "--policy", "seed", "--rate", "1", folder, before=heed),
                          cwd=ROOT, text=True,
                          stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # The copying has begun; at this rate it takes half an hour.
        wait_for_match(folder, "rewrite-*/*")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err == "compactlib: interrupted; what was finished stays\n"
    with LogReader(folder) as reader:
        assert [entry.index for entry in reader.entries()] == [*LIVE, 73, 74, 75]
    assert not list(folder.glob("rewrite-*"))


# -- verify


@pytest.mark.parametrize("size", ["", "-1", "1e9", "nan", "64 QB", "9" * 400])
def test_a_size_that_is_none_is_refused(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compact", str(make_log(tmp_path / "log")), f"--rate={size}"])
    assert ended.value.code == 2
    assert "is no size; write bytes, or for example 64MB or 1GiB" in capsys.readouterr().err


def test_verify_says_that_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    size = sum(path.stat().st_size for path in folder.glob("*.segment"))
    assert answer(capsys, "verify", folder) == (
        0, f"{folder}: 75 entries in {size:,} bytes, all as they were written\n", "")
    assert rows(capsys, "verify", folder) == []


def make_store(folder: Path) -> Path:
    """Two logs with all their entries in the write-ahead log; the second one's live entries as well."""
    with RaftLogStore(folder, StoreOptions(background=False)) as store:
        for log_id in ("a", "b"):
            store.log(log_id).append((index, 1, b"x%d" % index) for index in range(1, 51))
        store.log("b").snapshot(50, [7, 8])
    return folder


def test_verify_of_a_log_of_a_store_and_of_the_whole_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy log was called damaged while live entries were in the write-ahead log; a store was no log at all."""
    store = make_store(tmp_path / "store")
    assert main(["verify", str(store / "logs" / "b")]) == 0
    assert "/b: 50 entries in" in capsys.readouterr().out
    assert main(["verify", str(store)]) == 0
    assert "2 logs, 100 entries in" in capsys.readouterr().out
    assert main(["inspect", str(store / "logs" / "a")]) == 0
    assert "50 newer entries" in " ".join(capsys.readouterr().out.split())
    (wal,) = (store / "wal").iterdir()
    flip_byte(wal, 100)
    assert main(["verify", str(store)]) == 1
    assert ".wal" in capsys.readouterr().out


def test_compact_of_a_log_of_a_store_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path / "store")
    before = contents(store / "logs" / "b")
    assert main(["compact", str(store / "logs" / "b")]) == 2
    assert "RaftLogStore" in capsys.readouterr().err
    assert contents(store / "logs" / "b") == before


def test_verify_lists_damaged_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    path = folder / segment_name(7)
    flip_byte(path, -1)
    before = contents(folder)
    code, out, err = answer(capsys, "verify", folder)
    assert (code, err) == (1, "")
    assert f"{path}" in out
    assert out.endswith(f"{folder}: 1 damaged or missing; restore the files from a copy\n")
    code, out, _ = answer(capsys, "verify", folder, "--json")
    assert code == 1
    assert [row["place"].partition(" at ")[0] for row in json.loads(out)] == [str(path)]
    assert json.loads(out)[0]["place"].endswith(" (index 70)")
    assert contents(folder) == before


def test_verify_lists_what_keeps_the_log_from_being_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    flip_byte(folder / segment_name(2), 0)
    flip_byte(folder / segment_name(3), -1)
    code, out, err = answer(capsys, "verify", folder, "--json")
    assert (code, err) == (1, "")
    first, second = (row["place"] for row in json.loads(out))
    assert first.endswith(f"{segment_name(2)} at offset 0")
    assert f"{segment_name(3)} at offset " in second
    assert second.endswith(" (index 30)")


def test_verify_lists_a_damaged_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    flip_byte(folder / "SNAPSHOT", 20)
    code, out, _ = answer(capsys, "verify", folder, "--json")
    assert code == 1
    assert ["/SNAPSHOT at offset " in row["place"] for row in json.loads(out)] == [True]


def test_verify_lists_live_entries_that_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    (folder / segment_name(1)).unlink()
    code, out, _ = answer(capsys, "verify", folder, "--json")
    assert code == 1
    assert [(row["kind"], row["place"].rpartition(" ")[2]) for row in json.loads(out)] == [
        ("missing", "3)"), ("missing", "7)")]


# -- what is refused


@pytest.mark.parametrize("command", ["inspect", "plan", "compact", "verify"])
def test_what_is_no_log_is_refused_and_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                     command: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert "does not exist" in refusal(capsys, command, tmp_path / "none")
    assert "is not a folder" in refusal(capsys, command, tmp_path / "file")
    assert "is not a log" in refusal(capsys, command, tmp_path / "empty")
    assert "is not a log" in refusal(capsys, command, tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


def test_a_log_of_a_later_release_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_log(tmp_path / "log")
    flip_byte(folder / segment_name(1), 8)
    assert segment_name(1) in refusal(capsys, "inspect", folder)


@pytest.mark.parametrize("arguments", [
    ("--rate", "fast"), ("--rate", "-1"), ("--max-bytes", "1XB"), ("--policy", "none"),
    ("--executor", "cloud"), ("--workers", "two")])
def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                  arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["compact", str(tmp_path), *arguments])
    assert caught.value.code == 2
    assert arguments[1] in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "told"), [(("--rate", "0"), "bytes_per_second is 0"),
                                                (("--workers", "0"), "workers is 0"),
                                                (("--workers", "0", "--executor", "process"), "workers is 0")])
def test_numbers_that_are_out_of_range_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                   arguments: tuple[str, ...], told: str) -> None:
    assert told in refusal(capsys, "compact", make_log(tmp_path / "log"), *arguments)


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "command" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"compactlib {compactlib.__version__}\n"


@pytest.mark.parametrize("command", ["", "demo", "inspect", "plan", "why", "compact", "verify"])
def test_each_command_has_help_that_fits(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    assert "show this help" in capsys.readouterr().out


# -- as a process


def test_the_module_is_the_console_script(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    done = subprocess.run([sys.executable, "-m", "compactlib", "inspect", str(folder)], cwd=ROOT, text=True,
                          capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{folder}: 8 segments")


@pytest.mark.parametrize("where", ["compactlib.app.stores", "argparse"])
def test_interrupted_while_it_starts_it_says_so_in_one_line(where: str) -> None:
    script = f"""
import argparse, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {where!r}:
            raise KeyboardInterrupt

def interrupts(*given):
    raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
if {where!r} == "argparse":
    argparse.ArgumentParser.parse_args = interrupts
from compactlib.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script, "inspect", "none"], cwd=ROOT, text=True, capture_output=True,
                          check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("compactlib: interrupted; ")
    assert done.stderr.count("\n") == 1


def test_an_error_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = run_compactlib("inspect", tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (f"compactlib: {tmp_path / 'none'} does not exist; check the path, or make a log "
                           f"there with SegmentLog and create=True\n")


def test_spark_that_is_not_installed_is_named_with_what_to_install(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    before = contents(folder)
    done = run_compactlib("compact", "--executor", "spark", folder, before="sys.modules['pyspark'] = None")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "compactlib: a Spark session needs the package 'pyspark': pip install 'compactlib[spark]'\n"
    assert contents(folder) == before


def test_nobody_reads_the_answer(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(compactlib_process("inspect", folder), cwd=ROOT, stdout=out, stderr=subprocess.PIPE,
                              check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_names_that_the_output_cannot_show_are_shown_as_escapes(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "käse")
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).touch()
    done = run_compactlib("inspect", folder, before="sys.stdout.reconfigure(encoding='ascii', errors='strict')")
    assert (done.returncode, done.stderr) == (0, "")
    assert "k\\xe4se: 8 segments" in done.stdout
    assert "caf\\udce9.txt" in done.stdout
    refused = run_compactlib("inspect", tmp_path / "käs", before="sys.stderr.reconfigure(encoding='ascii')")
    assert "k\\xe4s does not exist" in refused.stderr


def test_a_disk_that_is_full_is_told_in_one_line(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(compactlib_process("inspect", make_log(tmp_path / "log")), cwd=ROOT, stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_that_cannot_be_written_is_an_exit_code_all_the_same(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(compactlib_process("verify", tmp_path / "none"), cwd=ROOT, stderr=full, check=False)
    assert done.returncode == 2, "1 would say that the log is damaged"


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_change_no_exit_code_and_get_no_byte_into_the_log(closed: str, tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    for arguments in (("verify", folder), ("compact", "--policy", "seed", folder), ("verify", folder)):
        # What is said to a closed stream must not reach a file of the log that got its number.
        command = compactlib_process(*arguments, before="import os")
        done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], cwd=ROOT, check=False,
                              capture_output=True, text=True)
        assert done.returncode == 0, done
        assert "Traceback" not in done.stderr
    assert main(["verify", str(folder)]) == 0


def test_the_documentation_names_every_option_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    known: set[str] = set()
    for command in ("demo", "inspect", "plan", "why", "compact", "verify"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        known.update(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    told = set(re.findall(r"--[a-z][a-z-]*", (ROOT / "docs" / "cli.md").read_text()))
    assert told == known - {"--help"}
