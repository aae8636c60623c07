# SPDX-License-Identifier: Apache-2.0
"""Executors that answer with a file which is whole, and is not what the task would have made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.errors import InvalidInput
from compactlib.executors import LocalExecutor, RewrittenFile
from compactlib.observer import Observer
from compactlib.raftlog import SegmentLog
from compactlib.raftlog.compaction.rewrite import CompactSegments
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.rewrite import RewriteOutcome, RewriteResult, RewriteTask
from tests.raftlog.compaction_logs import Expected, done, entries_of, failed, options, strays, vector_45


@attrs.frozen
class Instead:
    """Runs another task in the place of each, or changes what it has made."""

    task: Callable[[CompactSegments], CompactSegments] = lambda task: task
    file: Callable[[CompactSegments, RewrittenFile], RewrittenFile] = lambda task, file: file

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        for task in tasks:
            assert isinstance(task, CompactSegments)
            for outcome in LocalExecutor().run([self.task(task)], budget=budget, observer=observer):
                assert isinstance(outcome, RewriteResult), outcome
                yield attrs.evolve(outcome, files=(self.file(task, outcome.files[0]),))


def its_source(task: CompactSegments, file: RewrittenFile) -> RewrittenFile:
    with SegmentReader(task.sources[0].path) as reader:
        loaded = reader.loaded
        return RewrittenFile(reader.path, loaded.data_end, loaded.durable_entries, loaded.index_crc)


@pytest.mark.parametrize("wrong", [
    Instead(task=lambda task: attrs.evolve(task, sources=task.sources[:-1])),
    Instead(task=lambda task: attrs.evolve(task, sources=(task.sources[0], task.sources[2]))),
    Instead(file=its_source),
], ids=["without the last source", "without one in between", "a source itself"])
def test_a_file_that_lacks_a_live_entry_takes_the_place_of_nothing(wrong: Instead, tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        report, errors = failed(log, executor=wrong)
        assert set(map(type, errors)) == {InvalidInput}
        assert not report.done
        assert strays(tmp_path) == []
        expected.check(log)
        done(log.compact(policy=log.policy))
        expected.check(log)


def test_what_was_made_in_an_earlier_life_is_not_taken_for_the_answer(tmp_path: Path) -> None:
    """The leader's number is the task's name again, and more segments are in its group by now."""
    kept: list[tuple[RewrittenFile, bytes]] = []

    def keep(task: CompactSegments, file: RewrittenFile) -> RewrittenFile:
        kept.append((file, Path(file.path).read_bytes()))
        return file

    def answer_again(task: CompactSegments, file: RewrittenFile) -> RewrittenFile:
        earlier, content = kept[0]
        Path(file.path).write_bytes(content)
        return attrs.evolve(earlier, path=file.path)

    (tmp_path / "log").mkdir()
    vector_45(tmp_path / "log")
    with SegmentLog(tmp_path / "log", options()) as log:
        done(log.compact(policy=log.policy, executor=Instead(file=keep)))
        log.extend(entries_of(50, 97))
        log.record_snapshot(96, [1, 40, 70, 90])
    with SegmentLog(tmp_path / "log", options()) as log:
        _, errors = failed(log, executor=Instead(file=answer_again))
        assert set(map(type, errors)) == {InvalidInput}
        Expected.of(entries_of(1, 97), 96, [1, 40, 70, 90]).check(log)
