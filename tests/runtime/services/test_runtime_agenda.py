# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: the stories in `tests/runtime/scenarios/agenda_*.txt`, and random worlds of work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactlib.errors import InvalidInput, NotFound
from compactlib.outcome import Done, Outcome, Skipped
from compactlib.runtime.services.agenda import Accepted, Agenda, Ending, Refused, Removed, Turn
from compactlib.runtime.services.work_report import WorkReport
from tests.runtime.services.agenda_story import Story, broken, turns_of

SCENARIOS = sorted((Path(__file__).parents[2] / "runtime" / "scenarios").glob("agenda_*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem.removeprefix("agenda_"))
def test_scenario(path: Path) -> None:
    Story().run(path.read_text())


@pytest.mark.parametrize("wrong", ["start\n", "start\n> a on d: asked, check", "report\n> a, waiting", "request a"])
def test_a_story_can_fail_and_names_the_line(wrong: str) -> None:
    with pytest.raises(AssertionError, match="line 3, "):
        Story().run(f"settings every=1 retry=1 max_retry=1\nadd a on d\n{wrong}")


@pytest.mark.parametrize("wrong", [{"retry_seconds": 0.0}, {"retry_seconds": 1e9}, {"retry_seconds": float("nan")},
                                   {"max_retry_seconds": float("inf")}, {"max_retry_seconds": 1.0}])
def test_times_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="retry_seconds"):
        Agenda(**wrong)


def test_names_are_unique_and_known() -> None:
    agenda = Agenda()
    agenda.add("a", "d", 0.0)
    assert "a" in agenda
    with pytest.raises(InvalidInput, match="work 'a' already"):
        agenda.add("a", "d", 0.0)
    with pytest.raises(InvalidInput, match="every_seconds is 0"):
        agenda.add("b", "d", 0.0, every_seconds=0.0)
    with pytest.raises(NotFound, match="no work 'b'; known is 'a'"):
        agenda.set_enabled("b", True, 0.0)
    with pytest.raises(InvalidInput, match="never began"):
        agenda.finished("a", "skipped", Skipped("x"), 0.0)
    with pytest.raises(InvalidInput, match="strength of a request is 0"):
        agenda.request("a", 0)


def test_an_error_names_some_of_the_work_that_is_known() -> None:
    agenda = Agenda()
    for number in range(1000):
        agenda.add(f"s{number}", "d", 0.0)
    with pytest.raises(NotFound, match=r"no work 'x'; known is 's0', 's1', .*'s19', and 980 more"):
        agenda["x"]
    refused = agenda.request("x")
    assert isinstance(refused, Refused)
    assert len(refused.reason) < 300


def test_work_is_due_when_its_time_has_come_and_not_before() -> None:
    """Ambry reckons an earlier time for idle stores, which has no effect: here there is none."""
    agenda = Agenda()
    agenda.add("a", "d", 0.0, every_seconds=100.0, resumes=True)
    agenda.start(0.0)
    for _ in range(2):
        assert agenda.take(0.0)
        agenda.finished("a", "skipped", Skipped("idle"), 0.0)
    assert agenda.take(0.0) is None
    assert agenda.is_at_rest(0.0)
    assert agenda.next_wake(0.0) == 100.0
    assert agenda.take(99.9) is None
    assert not agenda.is_at_rest(100.0)
    assert agenda.take(100.0) == Turn("a", "d", "periodic", 1)


def test_the_wait_after_a_failure_has_a_bound_whatever_the_number() -> None:
    agenda = Agenda(retry_seconds=1.0, max_retry_seconds=3_600.0)
    agenda.add("a", "d", 0.0)
    agenda.start(0.0)
    agenda.request("a")
    now, waits = 0.0, []
    for _ in range(1_100):
        assert agenda.take(now)
        agenda.finished("a", "failed", broken(), now)
        wake = agenda.next_wake(now)
        assert wake is not None
        waits.append(wake - now)
        now = wake
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == 3_600.0


def test_what_is_asked_for_has_a_strength_and_the_strongest_counts_until_it_is_done() -> None:
    """What is asked for while it runs is done afterwards, and is not dropped."""
    agenda = Agenda(retry_seconds=1.0)
    agenda.add("a", "d", 0.0)
    agenda.start(0.0)
    for strengths, expected in (((3,), 3), ((1, 2), 2), ((3, 1, 2), 3)):
        agenda.request("a", 3)
        assert agenda.take(0.0) == Turn("a", "d", "asked", 3)
        for strength in strengths:
            assert isinstance(agenda.request("a", strength), Accepted)
        assert agenda.take(0.0) is None
        agenda.finished("a", "done", Done("x"), 0.0)
        assert agenda.take(0.0) == Turn("a", "d", "asked", expected)
        # What failed is not forgotten by a weaker request.
        agenda.finished("a", "failed", broken(), 0.0)
        agenda.request("a", 1)
        assert agenda.take(0.0) == Turn("a", "d", "asked", expected)
        agenda.finished("a", "done", Done("x"), 0.0)
        assert agenda.take(0.0) is None


def test_what_was_given_up_is_not_tried_again() -> None:
    agenda = Agenda()
    agenda.add("a", "d", 0.0)
    agenda.start(0.0)
    agenda.request("a")
    agenda.take(0.0)
    agenda.finished("a", "given up", broken(), 0.0)
    assert agenda.next_wake(0.0) is None
    assert agenda["a"].condition == "waiting"


def test_a_lane_is_asked_alone() -> None:
    agenda = Agenda()
    for name in "ab":
        agenda.add(name, f"lane {name}", 0.0)
    agenda.start(0.0)
    agenda.request("b")
    agenda.request("a")
    assert agenda.lanes == ("lane a", "lane b")
    assert agenda.next_wake(0.0, "lane a") == 0.0
    assert agenda.take(0.0, "lane a") == Turn("a", "lane a", "asked", 1)
    assert agenda.take(0.0, "lane a") is None
    assert agenda.next_wake(0.0, "lane a") is None
    assert agenda.take(0.0) == Turn("b", "lane b", "asked", 1)


# --------------------------------------------------------------------------------------------------- random worlds

class World(RuleBasedStateMachine):
    """Any calls in any order, beside a plain account of what may be done and what has to."""

    names = st.sampled_from(["a", "b", "c", "d"])

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.agenda = Agenda(retry_seconds=10.0, max_retry_seconds=40.0)
        self.is_stopped = False
        self.may: dict[str, set[str]] = {}
        self.lanes: dict[str, str] = {}
        self.running: dict[str, Turn] = {}
        self.failed: dict[str, int] = {}
        self.asked: dict[str, int] = {}

    def runnable(self, name: str) -> bool:
        return not self.is_stopped and self.may.get(name) == {"enabled", "open"}

    @rule(name=names, lane=st.sampled_from(["d1", "d2"]), how=st.sets(st.sampled_from(["enabled", "open"])))
    def add(self, name: str, lane: str, how: set[str]) -> None:
        if name not in self.may:
            self.agenda.add(name, lane, self.now, every_seconds=100.0, resumes=name != "d", enabled="enabled" in how,
                            is_open="open" in how)
            self.may[name], self.lanes[name], self.failed[name] = set(how), lane, 0

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name in self.may:
            answer = self.agenda.remove(name)
            free = name not in self.running and not (self.agenda.is_active and "enabled" in self.may[name])
            assert isinstance(answer, Removed if free else Refused)
            if free:
                del self.may[name], self.lanes[name], self.failed[name]
                self.asked.pop(name, None)

    @rule(name=names, enabled=st.booleans())
    def enable(self, name: str, enabled: bool) -> None:
        if name in self.may:
            must_stop = self.agenda.set_enabled(name, enabled, self.now)
            assert must_stop == (not enabled and name in self.running)
            (self.may[name].add if enabled else self.may[name].discard)("enabled")
            self.forget_what_cannot_be_served()

    @rule(name=names, is_open=st.booleans())
    def open(self, name: str, is_open: bool) -> None:
        if name in self.may:
            self.agenda.set_open(name, is_open, self.now)
            (self.may[name].add if is_open else self.may[name].discard)("open")
            self.forget_what_cannot_be_served()

    def forget_what_cannot_be_served(self) -> None:
        self.asked = {name: strength for name, strength in self.asked.items() if self.runnable(name)}

    @rule(active=st.sampled_from([True, True, True, False]))
    def start_or_stop(self, active: bool) -> None:
        if active:
            self.agenda.start(self.now)
        else:
            assert sorted(self.agenda.stop()) == sorted(self.running)
            self.asked = {}
        self.is_stopped = not active

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=names, strength=st.integers(1, 3), joins=st.booleans())
    def request(self, name: str, strength: int, joins: bool) -> None:
        answer = self.agenda.request(name, strength, joins=joins)
        if not self.runnable(name):
            assert isinstance(answer, Refused)
            return
        assert isinstance(answer, Accepted)
        if answer.state == "running":
            assert joins
            assert self.running[name].strength >= strength
            return
        assert (answer.state == "queued") == (name not in self.asked)
        self.asked[name] = max(self.asked.get(name, 0), strength)

    @rule()
    def take(self) -> None:
        turns = turns_of(self.agenda, self.now)
        assert len({turn.lane for turn in turns}) == len(turns)
        for turn in turns:
            assert self.runnable(turn.name)
            assert self.lanes[turn.name] == turn.lane
            assert turn.lane not in {each.lane for each in self.running.values()}
            waiting = [name for name in self.asked if self.lanes[name] == turn.lane and name not in self.running]
            if waiting:
                assert (turn.name, turn.cause) == (waiting[0], "asked")
                assert turn.strength >= self.asked.pop(turn.name)
            assert turn.strength or turn.cause in ("resume", "retry")
            assert turn.strength or turn.name != "d"
        self.running.update({turn.name: turn for turn in turns})
        assert self.agenda.take(self.now) is None
        wake = self.agenda.next_wake(self.now)
        assert wake is None or wake > self.now

    @rule(data=st.data(), how=st.sampled_from(["done", "skipped", "busy", "failed", "failed", "given up", "stopped"]))
    def finish(self, data: st.DataObject, how: Ending) -> None:
        if self.running:
            name = data.draw(st.sampled_from(sorted(self.running)))
            del self.running[name]
            outcomes: dict[Any, Outcome[Any]] = {"done": Done("x"), "skipped": Skipped("x"), "busy": Skipped("x")}
            self.agenda.finished(name, how, outcomes.get(how, broken()), self.now)
            now_failing = {"failed": self.failed[name] + 1, "stopped": self.failed[name], "busy": self.failed[name]}
            self.failed[name] = now_failing.get(how, 0)

    @invariant()
    def it_holds_together(self) -> None:
        report = WorkReport.of(self.agenda, self.now)
        assert {row.work: row.failures for row in report.rows} == self.failed
        assert report.is_busy == bool(self.running)
        if self.agenda.is_at_rest(self.now):
            assert not self.running
            assert not self.asked
        for row in report.rows:
            if row.condition == "failing":
                assert row.next_try_in_seconds is not None
                assert row.next_try_in_seconds <= 40.0

    def teardown(self) -> None:
        """Whatever happened: given time, all that may be done is done."""
        for name in list(self.running):
            self.agenda.finished(name, "skipped", Skipped("x"), self.now)
        self.running.clear()
        self.agenda.start(self.now)
        self.is_stopped = False
        self.now += 140.0
        left = {name for name in self.may if self.runnable(name)}
        done = set()
        while turns := turns_of(self.agenda, self.now):
            for turn in turns:
                if turn.strength:
                    done.add(turn.name)
                self.agenda.finished(turn.name, "skipped", Skipped("x"), self.now)
        assert done == left


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60)


def test_the_report_shows_all_work_and_prints_itself() -> None:
    agenda = Agenda()
    for number in range(3):
        agenda.add(f"s{number}", "d", 0.0, every_seconds=10.0, resumes=True, enabled=number < 2)
    agenda.start(0.0)
    agenda.take(0.0)
    report = WorkReport.of(agenda, 5.0, what="the manager")
    assert repr(report) == "<WorkReport: the manager active: 1 disabled, 1 queued, 1 running>"
    assert [row["condition"] for row in report.to_dicts()] == ["running", "queued", "disabled"]
    assert report._repr_html_().startswith("<table>")
    assert "s1" in str(report)
    found = report.row("s0")
    assert found is not None
    assert found.cause == "resume"
    assert report.row("s9") is None
    assert report.failing == ()
