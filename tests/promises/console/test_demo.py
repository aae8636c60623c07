# SPDX-License-Identifier: Apache-2.0
"""The demo: a real log of real files, compacted, verified and compared; wrong values are found."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.cli import main
from compactlib.demo import run_demo
from compactlib.executors import Attempt, Executor, LocalExecutor, RewriteResult, RewriteTask
from compactlib.raftlog import LogReader, SegmentLog
from tests.promises.console.stores import flip_byte

Console = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with files of many sizes, an empty one and a binary one among them."""
    folder = tmp_path / "input"
    for number in range(60):
        path = folder / f"part{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(b"line %d of %d\n" % (line, number) for line in range(number)))
    (folder / "binary").write_bytes(bytes(range(256)) * 20)
    return folder


def file_bytes(folder: Path) -> int:
    with LogReader(folder) as reader:
        return sum(Path(reader.path_of(stats.number)).stat().st_size for stats in reader.view().segments)


def demo_with(executor: Executor, source: Path, folder: Path) -> int:
    executors: dict[str, Callable[[], contextlib.AbstractContextManager[Executor]]] = {
        "local": lambda: contextlib.nullcontext(executor), "other": lambda: contextlib.nullcontext(LocalExecutor())}
    return run_demo(str(source), executors, folder=str(folder), max_bytes=10**6)


def test_demo_writes_compacts_verifies_and_compares(source: Path, tmp_path: Path, capsys: Console) -> None:
    kept = tmp_path / "kept"
    assert demo_with(LocalExecutor(), source, kept) == 0
    out = capsys.readouterr().out
    assert f"input     {source}: 61 of 61 files" in out
    assert "the segments of local and other are the same, byte by byte\n" in out
    assert file_bytes(kept / "local") < file_bytes(kept / "written") / 2
    with LogReader(kept / "local") as reader:
        assert reader.state.index >= 0
        assert f"\nverified  {len(reader.state.live)} live values identical by SHA-256" in out
    commands = [line.split()[1:] for line in out.splitlines() if line.startswith("  compactlib ")]
    assert [command[0] for command in commands] == ["inspect", "inspect", "inspect", "verify", "plan", "compact"]
    assert [main(command) for command in commands] == [0] * 6


def test_same_input_gives_the_same_log(source: Path, tmp_path: Path) -> None:
    logs = []
    for kept in (tmp_path / "1", tmp_path / "2"):
        assert main(["demo", "--input", str(source), "--executor", "local", "--folder", str(kept)]) == 0
        with LogReader(kept / "local") as reader:
            logs.append(list(reader.entries()))
    assert logs[0] == logs[1]


def test_temporary_folder_is_removed_at_the_end(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    assert main(["demo", "--input", str(source), "--executor", "local"]) == 0
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"one line\n"])
def test_one_small_file_is_enough(tmp_path: Path, capsys: Console, content: bytes) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "only").write_bytes(content)
    assert main(["demo", "--input", str(tmp_path / "input"), "--executor", "local"]) == 0
    assert "\nverified  " in capsys.readouterr().out


def test_input_and_folder_that_will_not_do_are_refused(source: Path, tmp_path: Path, capsys: Console) -> None:
    for arguments, said in ((["--input", str(source), "--folder", str(source)], "is not empty"),
                            (["--input", str(tmp_path / "none")], "is not a folder"),
                            (["--input", str(source), "--max-bytes", "0B", "--folder", str(tmp_path / "k")], "")):
        code = main(["demo", "--executor", "local", *arguments])
        assert code == (2 if said else 0), arguments
        assert said in capsys.readouterr().err


@attrs.frozen
class ForeignTask:
    """Raises in place of the first task."""

    task: RewriteTask

    @property
    def name(self) -> str:
        return self.task.name

    def run(self, attempt: Attempt) -> RewriteResult:
        raise OSError("this task is refused")


@attrs.frozen
class FailingFirst:
    """An executor of which the first task fails."""

    def run(self, tasks: Iterable[RewriteTask], **named: Any) -> Iterator[Any]:
        first, *others = tasks
        return LocalExecutor().run([ForeignTask(first), *others], **named)


@attrs.frozen
class DamagingAtTheEnd:
    """An executor that damages the log when all tasks are done."""

    folder: Path

    def run(self, tasks: Iterable[RewriteTask], **named: Any) -> Iterator[Any]:
        yield from LocalExecutor().run(tasks, **named)
        newest = max(self.folder.glob("*.segment"))
        flip_byte(newest, -1)


def test_group_that_failed_is_a_problem(source: Path, tmp_path: Path, capsys: Console) -> None:
    assert demo_with(FailingFirst(), source, tmp_path / "kept") == 1
    out = capsys.readouterr().out
    assert "this task is refused" in out
    assert "NOT VERIFIED: " in out
    assert main(["verify", str(tmp_path / "kept" / "local")]) == 0, "the others are committed, nothing is lost"


def test_damage_is_found_and_the_logs_stay(source: Path, tmp_path: Path, capsys: Console) -> None:
    kept = tmp_path / "kept"
    assert demo_with(DamagingAtTheEnd(kept / "local"), source, kept) == 1
    out = capsys.readouterr().out
    assert "NOT VERIFIED: " in out
    assert "differs from that of" in out
    assert sorted(path.name for path in kept.iterdir()) == ["local", "other", "written"]


def test_a_wrong_value_is_found(source: Path, tmp_path: Path, capsys: Console) -> None:
    """Of a log that is sound in itself: one value is another one, with its checksum."""
    kept = tmp_path / "kept"

    @contextlib.contextmanager
    def opened() -> Iterator[Executor]:
        yield LocalExecutor()
        with LogReader(kept / "local") as reader:
            entries, snapshot = list(reader.entries()), reader.state
        assert snapshot is not None
        shutil.rmtree(kept / "local")
        with SegmentLog(kept / "local") as log:
            for entry in entries[:-1]:
                log.append([(entry.index, entry.term, entry.payload)])
            log.append([(entries[-1].index, entries[-1].term, entries[-1].payload + b" changed")])
            log.snapshot(snapshot.index, snapshot.live)

    assert run_demo(str(source), {"local": opened}, folder=str(kept), max_bytes=10**6) == 1
    assert "is not what was written" in capsys.readouterr().out
