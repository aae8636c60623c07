"""The language of `tests/scenarios/blobstore/manager_*.txt`: what is told to a `ManagerState`, and what it answers.

    settings periodic admin check=100 retry=10 max_retry=40     first, once
    add NAME on DISK [disabled] [closed]       start, stop, wait SECONDS
    enable, disable, open, close, remove, request NAME
    done, skipped, failed, stopped NAME        how the run of NAME ended
    report                                     every store on a line

Below each command stand, behind `> `, its answer and the runs that begin then.
"""

from __future__ import annotations

from compactlib.blobstore.manager_model import Accepted, ManagerSettings, Refused, Removed, Run
from compactlib.blobstore.manager_report import ManagerReport
from compactlib.blobstore.manager_state import ManagerState
from compactlib.blobstore.triggers import Trigger, parse_triggers
from compactlib.errors import BudgetSpent, StorageError
from compactlib.outcome import Done, Failed, Skipped


class Story:
    """Plays one story; a difference names the line."""

    def __init__(self) -> None:
        self.state = ManagerState(ManagerSettings())
        self.settings = ManagerSettings()
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
        runs = [_told_run(run) for run in self.state.tick(self.now)]
        self.state.audit()
        wake = self.state.next_wake(self.now)
        assert wake is None or wake > self.now or self.state.tick(self.now) == ()
        return [*told, *runs]

    def _settings(self, *words: str) -> None:
        numbers = {key: float(value) for key, value in (word.split("=") for word in words if "=" in word)}
        self.settings = ManagerSettings(
            triggers=parse_triggers([word for word in words if "=" not in word]), check_seconds=numbers["check"],
            retry_seconds=numbers["retry"], max_retry_seconds=numbers["max_retry"])
        self.state = ManagerState(self.settings)

    def _add(self, name: str, _on: str, disk: str, *how: str) -> None:
        self.state.add(name, disk, self.now, enabled="disabled" not in how, started="closed" not in how)

    def _start(self) -> None:
        self.state.start(self.now)

    def _stop(self) -> list[str]:
        return [f"stop the run of {name}" for name in self.state.stop()]

    def _wait(self, seconds: str) -> None:
        self.now += float(seconds)

    def _enable(self, name: str) -> None:
        self.state.set_enabled(name, True, self.now)

    def _disable(self, name: str) -> list[str]:
        return [f"stop the run of {name}"] if self.state.set_enabled(name, False, self.now) else []

    def _open(self, name: str) -> None:
        self.state.set_started(name, True, self.now)

    def _close(self, name: str) -> None:
        self.state.set_started(name, False, self.now)

    def _remove(self, name: str) -> list[str]:
        return [_answer(self.state.remove(name))]

    def _request(self, name: str) -> list[str]:
        return [_answer(self.state.request(name))]

    def _done(self, name: str) -> None:
        self.state.finished(name, Done("freed 1"), self.now)

    def _skipped(self, name: str) -> None:
        self.state.finished(name, Skipped("nothing is worth it"), self.now)

    def _failed(self, name: str) -> None:
        self.state.finished(name, Failed(StorageError(operation="write", path="/x", errno=5)), self.now)

    def _stopped(self, name: str) -> None:
        cancelled = BudgetSpent("the work was cancelled", reason="cancelled", spent_bytes=0)
        self.state.finished(name, Failed(cancelled), self.now, stopped=True)

    def _report(self) -> list[str]:
        report = ManagerReport.of(self.state, self.now, periodic=Trigger.PERIODIC in self.settings.triggers)
        lines = []
        for store in report.stores:
            parts = [store.store, store.condition]
            if store.failures:
                parts.append(f"failures={store.failures}")
            if store.last_outcome:
                parts.append(f"last={store.last_outcome}")
            if store.next_try_in_seconds is not None:
                parts.append(f"try in {store.next_try_in_seconds:.0f}")
            if store.next_check_in_seconds is not None:
                parts.append(f"check in {store.next_check_in_seconds:.0f}")
            lines.append(", ".join(parts))
        return lines


def _told_run(run: Run) -> str:
    return f"run {run.store} on {run.disk}: {run.cause}{', check' if run.checks else ''}"


def _answer(answer: Accepted | Refused | Removed) -> str:
    if isinstance(answer, Accepted):
        return answer.state
    return "removed" if isinstance(answer, Removed) else f"refused: {answer.reason}"
