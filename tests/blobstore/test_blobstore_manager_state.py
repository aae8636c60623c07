"""The manager's decisions: the stories in `tests/scenarios/blobstore/manager_*.txt`, and random worlds of stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import UnknownTrigger
from compactlib.blobstore.manager_model import Accepted, ManagerSettings, Refused, Removed, Run
from compactlib.blobstore.manager_report import ManagerReport
from compactlib.blobstore.manager_state import ManagerState
from compactlib.blobstore.triggers import Trigger, parse_triggers
from compactlib.errors import CompactlibError, InvalidInput, NotFound, StorageError
from compactlib.outcome import Done, Failed, Skipped
from tests.blobstore.manager_story import Story

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios" / "blobstore").glob("manager_*.txt"))
BOTH = frozenset(Trigger)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem.removeprefix("manager_"))
def test_scenario(path: Path) -> None:
    Story().run(path.read_text())


@pytest.mark.parametrize("wrong", ["start\n", "start\n> run a on d: admin, check", "report\n> a, waiting", "request a"])
def test_a_story_can_fail_and_names_the_line(wrong: str) -> None:
    with pytest.raises(AssertionError, match="line 3, "):
        Story().run(f"settings admin check=1 retry=1 max_retry=1\nadd a on d\n{wrong}")


# ------------------------------------------------------------------------------------------------------- triggers

@pytest.mark.parametrize(("names", "expected"), [
    ("", []), (" , ", []), ([], []), ("Periodic", [Trigger.PERIODIC]), ("ADMIN,periodic", [*Trigger]),
    (["Admin", " pErIoDiC "], [*Trigger]), (("admin", "admin"), [Trigger.ADMIN]),
])
def test_m1_and_m2_triggers_by_name_in_any_case(names: str | list[str], expected: list[Trigger]) -> None:
    assert parse_triggers(names) == frozenset(expected)


@pytest.mark.parametrize("names", ["@@BAD_TRIGGER@@", "periodic,often", ["", "admin"], ["periodic,admin"]])
def test_m2_an_unknown_trigger_is_named_with_those_there_are(names: str | list[str]) -> None:
    with pytest.raises(UnknownTrigger, match="take some of periodic, admin, or none") as caught:
        parse_triggers(names)
    assert caught.value.known == "periodic, admin"


@pytest.mark.parametrize("wrong", [{"check_seconds": 0.0}, {"retry_seconds": 0.0}, {"retry_seconds": 1e9},
                                   {"max_retry_seconds": float("inf")}, {"check_seconds": float("nan")}])
def test_times_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        ManagerSettings(**wrong)  # type: ignore[arg-type]


def test_a_configuration_has_settings_for_its_manager() -> None:
    config = BlobStoreConfig(compaction_triggers=("Periodic", "Admin"), compaction_check_seconds=60.0)
    assert ManagerSettings.of(config) == ManagerSettings(triggers=BOTH, check_seconds=60.0)
    assert ManagerSettings.of(BlobStoreConfig()) == ManagerSettings(triggers=frozenset())
    with pytest.raises(UnknownTrigger):
        ManagerSettings.of(BlobStoreConfig(compaction_triggers=("@@BAD_TRIGGER@@",)))


def test_names_are_unique_and_known() -> None:
    state = ManagerState(ManagerSettings())
    state.add("a", "d", 0.0)
    with pytest.raises(InvalidInput, match="a store 'a' already"):
        state.add("a", "d", 0.0)
    with pytest.raises(NotFound, match="no store 'b'; known are 'a'"):
        state.set_enabled("b", True, 0.0)
    with pytest.raises(CompactlibError, match="never began"):
        state.finished("a", Skipped("x"), 0.0)


def test_w8_a_check_is_due_when_its_time_has_come_and_not_before() -> None:
    """The system behind the notes reckons an earlier time for idle stores, which has no effect: here there is none."""
    state = ManagerState(ManagerSettings(triggers=BOTH, check_seconds=100.0))
    state.add("a", "d", 0.0, enabled=True)
    state.start(0.0)
    for _ in range(2):
        assert len(state.tick(0.0)) == 1
        state.finished("a", Skipped("idle"), 0.0)
    assert state.tick(0.0) == ()
    assert state.next_wake(0.0) == 100.0
    assert state.tick(99.9) == ()
    assert state.tick(100.0) == (Run("a", "d", "periodic", checks=True),)


def test_the_wait_after_a_failure_has_a_bound_whatever_the_number() -> None:
    state = ManagerState(ManagerSettings(retry_seconds=1.0, max_retry_seconds=3_600.0))
    state.add("a", "d", 0.0, enabled=True)
    state.start(0.0)
    now, waits = 0.0, []
    for _ in range(1_100):
        assert state.tick(now)
        state.finished("a", Failed(StorageError(operation="write", path="/x", errno=5)), now)
        wake = state.next_wake(now)
        assert wake is not None
        waits.append(wake - now)
        now = wake
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == 3_600.0


# --------------------------------------------------------------------------------------------------- random worlds

class Manager(RuleBasedStateMachine):
    """Any calls in any order, beside a plain account of what may run and what has to."""

    names = st.sampled_from(["a", "b", "c", "d"])

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.settings = ManagerSettings(triggers=BOTH, check_seconds=100.0, retry_seconds=10.0, max_retry_seconds=40.0)
        self.state = ManagerState(self.settings)
        self.may: dict[str, set[str]] = {}
        self.disks: dict[str, str] = {}
        self.running: dict[str, Run] = {}
        self.failed: dict[str, int] = {}
        self.asked: list[str] = []

    def runnable(self, name: str) -> bool:
        return self.state.is_active and self.may.get(name) == {"enabled", "open"}

    @rule(name=names, disk=st.sampled_from(["d1", "d2"]), how=st.sets(st.sampled_from(["enabled", "open"])))
    def add(self, name: str, disk: str, how: set[str]) -> None:
        if name not in self.may:
            self.state.add(name, disk, self.now, enabled="enabled" in how, started="open" in how)
            self.may[name], self.disks[name], self.failed[name] = set(how), disk, 0

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name in self.may:
            answer = self.state.remove(name)
            free = name not in self.running and not (self.state.is_active and "enabled" in self.may[name])
            assert isinstance(answer, Removed if free else Refused)
            if free:
                del self.may[name], self.disks[name], self.failed[name]
                self.asked = [each for each in self.asked if each != name]

    @rule(name=names, enabled=st.booleans())
    def enable(self, name: str, enabled: bool) -> None:
        if name in self.may:
            must_stop = self.state.set_enabled(name, enabled, self.now)
            assert must_stop == (not enabled and name in self.running)
            (self.may[name].add if enabled else self.may[name].discard)("enabled")
            self.forget_what_cannot_be_served()

    @rule(name=names, is_open=st.booleans())
    def open(self, name: str, is_open: bool) -> None:
        if name in self.may:
            self.state.set_started(name, is_open, self.now)
            (self.may[name].add if is_open else self.may[name].discard)("open")
            self.forget_what_cannot_be_served()

    def forget_what_cannot_be_served(self) -> None:
        self.asked = [name for name in self.asked if self.runnable(name)]

    @rule(active=st.sampled_from([True, True, True, False]))
    def start_or_stop(self, active: bool) -> None:
        if active:
            self.state.start(self.now)
        else:
            assert sorted(self.state.stop()) == sorted(self.running)
            self.asked = []

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=names)
    def request(self, name: str) -> None:
        answer = self.state.request(name)
        if not self.runnable(name):
            assert isinstance(answer, Refused)
            return
        assert isinstance(answer, Accepted)
        if answer.state == "queued":
            assert name not in self.asked
            self.asked.append(name)
        else:
            assert name in (self.asked if answer.state == "already queued" else self.running)

    @rule()
    def tick(self) -> None:
        runs = self.state.tick(self.now)
        assert len({run.disk for run in runs}) == len(runs)
        for run in runs:
            assert self.runnable(run.store)
            assert self.disks[run.store] == run.disk
            assert run.disk not in {each.disk for each in self.running.values()}
            waiting = [name for name in self.asked if self.disks[name] == run.disk and name not in self.running]
            if waiting:
                assert (run.store, run.cause, run.checks) == (waiting[0], "admin", True)
                self.asked.remove(run.store)
        self.running.update({run.store: run for run in runs})
        assert self.state.tick(self.now) == ()
        wake = self.state.next_wake(self.now)
        assert wake is None or wake > self.now

    @rule(data=st.data(), how=st.sampled_from(["done", "skipped", "failed", "failed", "stopped"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        if self.running:
            name = data.draw(st.sampled_from(sorted(self.running)))
            del self.running[name]
            error = Failed(StorageError(operation="write", path="/x", errno=5))
            outcome = Done("x") if how == "done" else Skipped("x") if how == "skipped" else error
            self.state.finished(name, outcome, self.now, stopped=how == "stopped")
            self.failed[name] = {"failed": self.failed[name] + 1, "stopped": self.failed[name]}.get(how, 0)

    @invariant()
    def it_holds_together(self) -> None:
        self.state.audit()
        report = ManagerReport.of(self.state, self.now, periodic=True)
        assert {store.store: store.failures for store in report.stores} == self.failed
        for store in report.stores:
            if store.condition == "failing":
                assert store.next_try_in_seconds is not None
                assert store.next_try_in_seconds <= 40.0

    def teardown(self) -> None:
        """Whatever happened: given time, each store that may run is checked."""
        for name in list(self.running):
            self.state.finished(name, Skipped("x"), self.now)
        self.running.clear()
        self.state.start(self.now)
        self.now += 140.0
        left = {name for name in self.may if self.runnable(name)}
        checked = set()
        while runs := self.state.tick(self.now):
            for run in runs:
                if run.checks:
                    checked.add(run.store)
                self.state.finished(run.store, Skipped("x"), self.now)
        assert checked == left


TestManager = Manager.TestCase
TestManager.settings = settings(max_examples=60)


def test_the_report_shows_every_store_and_prints_itself() -> None:
    state = ManagerState(ManagerSettings(triggers=BOTH))
    for number in range(3):
        state.add(f"s{number}", "d", 0.0, enabled=number < 2)
    state.start(0.0)
    state.tick(0.0)
    report = ManagerReport.of(state, 5.0, periodic=True)
    assert repr(report) == "<ManagerReport: manager running, 3 stores: 1 disabled, 1 queued, 1 running>"
    assert [row["condition"] for row in report.to_dicts()] == ["running", "queued", "disabled"]
    assert report._repr_html_().startswith("<table>")
    assert "s1" in str(report)
    found = report.of_store("s0")
    assert found is not None
    assert found.cause == "resume"
    assert report.of_store("s9") is None
    assert report.failing == ()
