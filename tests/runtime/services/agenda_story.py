# SPDX-License-Identifier: Apache-2.0
"""The language of `tests/runtime/scenarios/agenda_*.txt`: what is told to an `Agenda`, and what it answers.

    settings every=100 retry=10 max_retry=40     first, once; without `every=` nothing is periodic
    add NAME on LANE [disabled] [closed]         start, stop, wait SECONDS
    enable, disable, open, close, remove, request NAME
    done, skipped, busy, failed, stopped NAME    how the turn of NAME ended
    report                                       all work, each on a line

Below each command stand, behind `> `, its answer and the turns that begin then; work in the stories is what resumes.
"""

from __future__ import annotations

from compactlib.errors import BudgetSpent, StorageError
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime.services.agenda import Accepted, Agenda, Refused, Removed, Turn
from compactlib.runtime.services.work_report import WorkReport


def broken() -> Failed:
    return Failed(StorageError(operation="write", path="/x", errno=5))


def turns_of(agenda: Agenda, now: float) -> list[Turn]:
    """All turns that begin now."""
    return list(iter(lambda: agenda.take(now), None))


class Story:
    """Plays one story; a difference names the line."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.every: float | None = None
        self.now = 0.0

    def run(self, text: str) -> None:
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)
                 if line.strip() and not line.startswith("#")]
        while lines:
            number, command = lines.pop(0)
            expected = []
            while lines and lines[0][1].startswith(">"):
                expected.append(lines.pop(0)[1].removeprefix(">").strip())
            found = self.step(command)
            assert found == expected, f"line {number}, {command!r}: expected {expected}, found {found}"

    def step(self, command: str) -> list[str]:
        verb, *words = command.split()
        told = getattr(self, f"_{verb}")(*words) or []
        turns = [_told_turn(turn) for turn in turns_of(self.agenda, self.now)]
        wake = self.agenda.next_wake(self.now)
        assert wake is None or wake > self.now or self.agenda.take(self.now) is None
        return [*told, *turns]

    def _settings(self, *words: str) -> None:
        numbers = {key: float(value) for key, value in (word.split("=") for word in words)}
        self.every = numbers.get("every")
        self.agenda = Agenda(retry_seconds=numbers["retry"], max_retry_seconds=numbers["max_retry"])

    def _add(self, name: str, _on: str, lane: str, *how: str) -> None:
        self.agenda.add(name, lane, self.now, every_seconds=self.every, resumes=True, enabled="disabled" not in how,
                        is_open="closed" not in how)

    def _start(self) -> None:
        self.agenda.start(self.now)

    def _stop(self) -> list[str]:
        return [f"stop the turn of {name}" for name in self.agenda.stop()]

    def _wait(self, seconds: str) -> None:
        self.now += float(seconds)

    def _enable(self, name: str) -> None:
        self.agenda.set_enabled(name, True, self.now)

    def _disable(self, name: str) -> list[str]:
        return [f"stop the turn of {name}"] if self.agenda.set_enabled(name, False, self.now) else []

    def _open(self, name: str) -> None:
        self.agenda.set_open(name, True, self.now)

    def _close(self, name: str) -> None:
        self.agenda.set_open(name, False, self.now)

    def _remove(self, name: str) -> list[str]:
        return [_answer(self.agenda.remove(name))]

    def _request(self, name: str) -> list[str]:
        return [_answer(self.agenda.request(name, joins=True))]

    def _done(self, name: str) -> None:
        self.agenda.finished(name, "done", Done("freed 1"), self.now)

    def _skipped(self, name: str) -> None:
        self.agenda.finished(name, "skipped", Skipped("nothing is worth it"), self.now)

    def _busy(self, name: str) -> None:
        self.agenda.finished(name, "busy", Skipped("somebody else is at it"), self.now)

    def _failed(self, name: str) -> None:
        self.agenda.finished(name, "failed", broken(), self.now)

    def _stopped(self, name: str) -> None:
        cancelled = BudgetSpent("the work was cancelled", reason="cancelled", spent_bytes=0)
        self.agenda.finished(name, "stopped", Failed(cancelled), self.now)

    def _report(self) -> list[str]:
        lines = []
        for row in WorkReport.of(self.agenda, self.now).rows:
            parts = [row.work, row.condition]
            if row.failures:
                parts.append(f"failures={row.failures}")
            if row.last_ending:
                parts.append(f"last={row.last_ending}")
            if row.next_try_in_seconds is not None:
                parts.append(f"try in {row.next_try_in_seconds:.0f}")
            if row.next_due_in_seconds is not None:
                parts.append(f"due in {row.next_due_in_seconds:.0f}")
            lines.append(", ".join(parts))
        return lines


def _told_turn(turn: Turn) -> str:
    return f"{turn.name} on {turn.lane}: {turn.cause}{', check' if turn.strength else ''}"


def _answer(answer: Accepted | Refused | Removed) -> str:
    if isinstance(answer, Accepted):
        return answer.state
    return "removed" if isinstance(answer, Removed) else f"refused: {answer.reason}"
