# SPDX-License-Identifier: Apache-2.0
"""The demo from end to end with the local executor; its Spark part is in tests/spark."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs
import pytest

from compactlib.app.cli import main
from compactlib.app.demo import DemoSettings, run_demo
from compactlib.app.demo_log import LogSize
from compactlib.errors import BudgetSpent, CorruptData
from compactlib.executors import Attempt, Executor, LocalExecutor, RewriteResult, RewriteTask
from compactlib.raftlog import LogReader
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer
from tests.app.log_folders import flip_byte, run_compactlib


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with files of many sizes, an empty one and one that is no text among them."""
    folder = tmp_path / "input"
    for number in range(60):
        path = folder / f"part{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(b"line %d of %d\n" % (line, number) for line in range(number)))
    (folder / "binary").write_bytes(bytes(range(256)) * 20)
    return folder


def cells(out: str, row: str) -> list[float]:
    """The numbers in one row of the demo's table."""
    (line,) = (line for line in out.splitlines() if line.startswith(f"{row}  "))
    return [float(cell.replace(",", "")) for cell in line[len(row):].split()]


def test_everything_is_written_compacted_verified_and_reported(source: Path, tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    assert main(["demo", "--input", str(source), "--executor", "local", "--folder", str(kept)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    before, after = LogSize.of(str(kept / "written")), LogSize.of(str(kept / "local"))
    assert cells(said.out, "entries") == [before.entries, after.entries]
    assert cells(said.out, "segments") == [before.segments, after.segments]
    assert cells(said.out, "bytes") == [before.file_bytes, after.file_bytes]
    assert cells(said.out, "bytes freed") == [before.file_bytes - after.file_bytes]
    assert 0 < cells(said.out, "bytes copied")[0] < after.file_bytes
    assert cells(said.out, "seconds")[0] > 0
    assert after.segments < before.segments / 2
    with LogReader(kept / "local") as reader:
        assert reader.snapshot is not None
        live = len(reader.snapshot.live)
    assert f"input     {source}: 61 of 61 files" in said.out
    assert f"\nverified  {live} live values identical by SHA-256, {before.entries - live} dead entries " in said.out
    for line in said.out.splitlines():
        if line.startswith("  compactlib "):
            assert main(line.split()[1:]) == 0


def test_the_same_seed_gives_the_same_log(source: Path, tmp_path: Path) -> None:
    logs = []
    for number, seed in enumerate(("3", "3", "4")):
        kept = tmp_path / str(number)
        assert main(["demo", "--input", str(source), "--executor", "local", "--folder", str(kept), "--seed", seed]) == 0
        with LogReader(kept / "local") as reader:
            logs.append(list(reader.entries()))
    assert logs[0] == logs[1] != logs[2]


def test_a_temporary_folder_is_gone_afterwards(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert main(["demo", "--input", str(source), "--executor", "local"]) == 0
    assert list(scratch.iterdir()) == []
    assert "compactlib inspect" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"one line\n"])
def test_one_small_file_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "only").write_bytes(content)
    for seed in range(8):
        assert main(["demo", "--input", str(tmp_path / "input"), "--executor", "local", "--seed", str(seed)]) == 0
        assert "\nverified  " in capsys.readouterr().out


@attrs.frozen
class TamperingTask:
    """Does the real work, and then changes the last payload byte of what it wrote: the index does not tell."""

    task: RewriteTask

    @property
    def name(self) -> str:
        return self.task.name

    def run(self, attempt: Attempt) -> RewriteResult:
        result = self.task.run(attempt)
        flip_byte(Path(result.files[0].path), -1)
        return result


@attrs.frozen
class RefusingTask:
    """Finds no budget left."""

    task: RewriteTask

    @property
    def name(self) -> str:
        return self.task.name

    def run(self, attempt: Attempt) -> RewriteResult:
        raise BudgetSpent("nothing left for this one", reason="bytes", spent_bytes=0)


@attrs.frozen
class OtherFirstTask:
    """An executor that puts something else in place of its first task."""

    instead: Callable[[RewriteTask], RewriteTask]

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        first, *others = tasks
        return LocalExecutor().run([self.instead(first), *others], budget=budget, observer=observer)


@attrs.frozen
class RemovingAtTheEnd:
    """An executor that removes a file when all tasks are done."""

    path: Path

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)
        self.path.unlink()


def demo_with(executor: Executor, source: Path, folder: Path | None = None) -> int:
    @contextlib.contextmanager
    def opened(name: str, workers: int | None) -> Iterator[Executor]:
        yield executor if name == "local" else LocalExecutor()

    settings = DemoSettings(input=str(source), executors=("local", "other"),
                            folder=None if folder is None else str(folder))
    return run_demo(settings, open_executor=opened)


def test_two_executors_that_do_the_same_are_compared(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo_with(LocalExecutor(), source) == 0
    out = capsys.readouterr().out
    assert "the segments of local and other are the same, byte by byte\n" in out
    before, local, other = cells(out, "bytes")
    assert before > local == other


def test_a_changed_byte_is_found_and_the_logs_stay_to_be_looked_at(
        source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert demo_with(OtherFirstTask(TamperingTask), source) == 1
    out = capsys.readouterr().out
    assert "\nverified" not in out
    assert re.search(r"\n  local: corrupt data in .*\n", out)
    assert re.search(r"\n  \d+\.segment of other differs from that of local\n", out)
    assert re.search(r"\nNOT VERIFIED: \d+ problems\n", out)
    (kept,) = tmp_path.glob("compactlib-demo-*")
    assert f"compactlib inspect {kept}/local\n" in out
    # The damaged output was read before its sources would have gone, so that both logs are sound.
    assert main(["verify", str(kept / "local")]) == 0
    assert main(["verify", str(kept / "other")]) == 0


@attrs.frozen
class DamagingAtTheEnd:
    """An executor that damages the header of the newest segment below a folder when all tasks are done."""

    folder: Path

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)
        flip_byte(max(self.folder.rglob("local/*.segment")), 0)


def test_a_log_that_cannot_be_opened_any_more_stays_to_be_looked_at(
        source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with pytest.raises(CorruptData) as caught:
        demo_with(DamagingAtTheEnd(scratch), source)
    assert Path(caught.value.path).exists()


def test_a_group_that_failed_is_not_passed_over(source: Path, tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    assert demo_with(OtherFirstTask(RefusingTask), source, tmp_path / "kept") == 1
    out = capsys.readouterr().out
    assert "\n  local: nothing left for this one\n" in out
    assert main(["verify", str(tmp_path / "kept" / "local")]) == 0


def test_only_the_first_problems_are_listed(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo_with(RemovingAtTheEnd(tmp_path / "kept" / "local" / "SNAPSHOT"), source, tmp_path / "kept") == 1
    out = capsys.readouterr().out
    assert re.search(r"NOT VERIFIED: \d+ problems \(the first 10 above\)", out)
    assert len(re.findall(r"\n  local: ", out)) == 10


# -- what is refused


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["demo", "--executor", "local", *arguments]) == 2
    return capsys.readouterr().err


def test_a_folder_that_holds_something_is_not_written_to(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(source.rglob("*"))
    assert "is not empty (it holds 'binary')" in refused(capsys, "--input", str(source), "--folder", str(source))
    assert sorted(source.rglob("*")) == before


def test_an_input_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a folder" in refused(capsys, "--input", str(tmp_path / "none"))


def test_no_room_for_a_single_file_is_refused(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "file").write_bytes(b"12345")
    assert "no file of at most 4 bytes" in refused(capsys, "--input", str(tmp_path / "large"), "--max-bytes", "4")


def test_without_spark_the_demo_ends_well_and_says_what_is_left_out(source: Path, tmp_path: Path) -> None:
    # A core install, by the imports that fail there.
    extras = "for name in ('pyspark', 'pyarrow', 'tqdm', 'prometheus_client'): sys.modules[name] = None"
    done = run_compactlib("demo", "--input", source, "--folder", tmp_path / "logs", before=f"exec({extras!r})")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nspark     left out: a Spark session needs the package 'pyspark': pip install 'compactlib[spark]'\n" in (
        done.stdout)
    assert "the log alone rebuilds the store (local)" in done.stdout
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["local", "written"]
    assert f"compactlib verify {tmp_path / 'logs' / 'local'}" in done.stdout


def test_spark_that_was_asked_for_and_is_not_installed_is_named_after_the_local_part(source: Path) -> None:
    done = run_compactlib("demo", "--executor", "both", "--input", source, before="sys.modules['pyspark'] = None")
    assert done.returncode == 2
    assert "\nlocal     dropped " in done.stdout
    assert done.stderr == "compactlib: a Spark session needs the package 'pyspark': pip install 'compactlib[spark]'\n"
