"""Plays the stories in `tests/scenarios/raftlog/worker_*.txt`.

One line each: what happens, `->`, and what the worker then does, or `nothing`. What happens is `request KIND`,
`snapshot 10`, `flushed`, `ended 1`, `ended 1 major dropped 2,3` (job 1 was a major that dropped segments),
`reported 1` or `close`; what the worker does is `run 1 KIND`, `report 1`, `remove 1`, `cancel 1`, joined by commas.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.outcome import Skipped
from compactlib.raftlog.worker_core import (
    CancelCompaction,
    RemoveFiles,
    ReportChanges,
    RunCompaction,
    SegmentChanges,
    WorkerCore,
    WorkerEffect,
)
from tests.raftlog.test_raftlog_worker import report

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios" / "raftlog").glob("worker_*.txt"))


def told(effect: WorkerEffect) -> str:
    """An effect in a few words."""
    match effect:
        case RunCompaction(job, kind):
            return f"run {job} {kind}"
        case ReportChanges(job):
            return f"report {job}"
        case RemoveFiles(job):
            return f"remove {job}"
        case CancelCompaction(job):
            return f"cancel {job}"


def happens(core: WorkerCore, words: list[str]) -> list[WorkerEffect]:
    """Let one thing happen."""
    match words:
        case ["request", kind]:
            return core.request(kind)  # type: ignore[arg-type]
        case ["snapshot", index]:
            return core.snapshot_recorded(int(index))
        case ["flushed"]:
            return core.segments_flushed()
        case ["ended", job]:
            return core.ended(int(job), Skipped("nothing to do"), SegmentChanges())
        case ["ended", job, kind, "dropped", numbers]:
            dropped = tuple(map(int, numbers.split(",")))
            return core.ended(int(job), report(kind, dropped), SegmentChanges(dropped=dropped))
        case ["reported", job]:
            return core.reported(int(job))
        case ["close"]:
            return core.close()
        case _:
            raise AssertionError(f"no such event: {words}")


def play(text: str) -> None:
    """Play a story; an error names the line."""
    core = WorkerCore()
    for number, line in enumerate(text.splitlines(), 1):
        event, arrow, wanted = line.split("#")[0].partition("->")
        if not event.strip():
            continue
        try:
            assert arrow, "a line says what the worker does"
            found = ", ".join(map(told, happens(core, event.split()))) or "nothing"
            core.audit()
            assert found == wanted.strip()
        except Exception as error:
            error.add_note(f"in line {number}: {line}")
            raise


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem.removeprefix("worker_") for path in SCENARIOS])
def test_scenario(scenario: Path) -> None:
    play(scenario.read_text())


def test_a_story_can_fail_and_names_the_line() -> None:
    with pytest.raises(AssertionError) as caught:
        play("request minor -> run 1 minor\n\nrequest minor -> run 2 minor\n")
    assert caught.value.__notes__ == ["in line 3: request minor -> run 2 minor"]
