# SPDX-License-Identifier: Apache-2.0
"""Any calls in any order, also from within the work of a service: each turn keeps to what was said before it."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, InvalidInput, NotFound, StorageError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime import RecordingObserver
from compactlib.runtime.services.agenda import Accepted, Removed
from compactlib.runtime.services.work_service import Job, WorkService

NAMES = ("a", "b", "c")
ENDINGS = ("done", "skipped", "busy", "failed", "raised", "closed", "spent", "interrupted")
FRIENDLY = ("request", "request", "enable", "open", "add")
CALLS = (*FRIENDLY, "run", "run", "noted", "due in", "disable", "close", "remove", "stop")


class Bug(Exception):
    """What nobody expects."""


class ServiceWorld(RuleBasedStateMachine):
    """A service without threads, whose work does what the machine has drawn: calls on the service, and an ending."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[list[tuple[str, str]], str]] = []
        self.running: list[Job] = []
        self.opened: list[Job] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        self.clock, self.observer = ManualClock(), RecordingObserver()
        self.service = WorkService("the world", event="failed", recovered="recovered", retry_seconds=1.0,
                                   max_retry_seconds=8.0, clock=self.clock, observer=self.observer)
        self.may: dict[str, set[str]] = {}
        self.turns = self.surprises = 0
        self.is_stopped = False
        for name in NAMES:
            self.add(name)

    def add(self, name: str) -> None:
        try:
            self.service.add(name, self.work, lane="left" if name == "a" else "right", resumes=name == "b",
                             every_seconds=10.0 if name == "c" else None)
        except InvalidInput:
            assert name in self.may
        else:
            self.may[name] = {"enabled", "open"}

    def work(self, job: Job) -> Outcome[Any]:
        assert self.may[job.turn.name] == {"enabled", "open"}
        assert not self.is_stopped
        assert job.turn.lane not in [each.turn.lane for each in self.running]
        self.turns += 1
        self.running.append(job)
        calls, ending = self.scripts.pop() if self.scripts else ([], "done")
        try:
            for what, name in calls:
                self.call(what, name, job)
        except KeyboardInterrupt:
            # Of a turn within this one, which it ends as well.
            self.surprises += 1
            raise
        else:
            return self.end(ending, job)
        finally:
            self.running.remove(job)

    def call(self, what: str, name: str, job: Job | None = None) -> None:
        known = name in self.may
        if what == "request":
            answer = self.service.request(name, 2)
            assert isinstance(answer, Accepted) == (not self.is_stopped and self.may.get(name) == {"enabled", "open"})
        elif what == "add":
            self.add(name)
        elif what == "remove" and known:
            if isinstance(self.service.remove(name), Removed):
                assert name not in [each.turn.name for each in self.running]
                del self.may[name]
        elif what in ("enable", "disable") and known:
            (self.service.enable if what == "enable" else self.service.disable)(name)
            (self.may[name].add if what == "enable" else self.may[name].discard)("enabled")
            assert what == "enable" or all(each.budget.cancelled for each in self.running if each.turn.name == name)
        elif what in ("open", "close") and known:
            self.service.set_open(name, what == "open")
            (self.may[name].add if what == "open" else self.may[name].discard)("open")
            self.opened += [each for each in self.running if each.turn.name == name and what == "open"]
        elif what == "stop":
            self.is_stopped = True
            try:
                outcome = self.service.stop(wait_seconds=0.0)
            except Busy:
                assert job is not None
                assert all(each.budget.cancelled for each in self.running)
            else:
                assert job is None
                assert isinstance(outcome, Done)
        elif what == "run":
            try:
                self.service.run_pending()
            except Closed:
                assert self.is_stopped
        elif what == "noted" and job is not None:
            job.note(Bug("dealt with"))
            self.surprises += 1
        elif what == "due in" and job is not None:
            job.due_in(3.0)
        elif not known and what in ("remove", "enable", "disable", "open", "close"):
            try:
                self.service.enable(name)
            except NotFound:
                return
            raise AssertionError(f"{name} is unknown, and was enabled")

    def end(self, ending: str, job: Job) -> Outcome[Any]:
        name = job.turn.name
        if ending == "raised":
            self.surprises += 1
            raise Bug("oops")
        if ending == "interrupted":
            self.surprises += 1
            raise KeyboardInterrupt
        if ending == "closed":
            if job not in self.opened:
                self.may[name].discard("open")
            job.rest()
            return Failed(Closed("it is closed"))
        if ending == "spent" and job.budget.refusal is not None:
            return Failed(job.budget.refusal)
        broken: Outcome[Any] = Failed(StorageError(operation="write", path="/x", errno=5))
        outcomes: dict[str, Outcome[Any]] = {
            "done": Done("x"), "skipped": Skipped("x"), "busy": Skipped("x", is_busy=True)}
        return outcomes.get(ending, broken)

    scripts_of_turns = st.lists(st.tuples(
        st.lists(st.tuples(st.sampled_from(CALLS), st.sampled_from(NAMES)), max_size=3), st.sampled_from(ENDINGS)),
        min_size=1, max_size=4)

    @rule(scripts=scripts_of_turns, asked=st.sets(st.sampled_from(NAMES), min_size=1))
    def run(self, scripts: Any, asked: set[str]) -> None:
        self.scripts = scripts
        for name in asked:
            for what in FRIENDLY[1:]:
                self.call(what, name)
            self.service.request(name)
        before, told = self.turns, len(self.observer.events)
        try:
            outcomes = self.service.run_pending()
        except Closed:
            assert self.is_stopped
        except KeyboardInterrupt:
            pass
        else:
            # What ran within another turn has answered there.
            assert len(outcomes) <= self.turns - before
        if self.turns == before:
            assert len(self.observer.events) == told
        self.scripts = []

    @rule(what=st.sampled_from(sorted({*CALLS} - {"noted", "due in"})), name=st.sampled_from(NAMES))
    def say(self, what: str, name: str) -> None:
        self.call(what, name)

    @rule()
    def begin_anew_if_stopped(self) -> None:
        if self.is_stopped:
            self.begin_anew()

    @rule(seconds=st.sampled_from([0.5, 1.0, 8.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def it_holds_together(self) -> None:
        assert self.service.failures == self.surprises
        assert not self.service.is_mine
        assert not self.service.report().is_busy
        assert {row.work for row in self.service.report().rows} == set(self.may)

    def teardown(self) -> None:
        outcome = self.service.stop()
        assert isinstance(outcome, Done)
        assert outcome.stats.turns == self.turns


TestServiceWorld = ServiceWorld.TestCase
TestServiceWorld.settings = settings(max_examples=80, deadline=None)

