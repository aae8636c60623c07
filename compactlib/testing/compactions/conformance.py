# SPDX-License-Identifier: Apache-2.0
"""What every `contract.Compaction` has to do, as tests that any implementation can inherit.

    from compactlib.testing import CompactionFactory
    from compactlib.testing.compactions.conformance import CompactionConformance

    class MyStores(CompactionFactory):
        def open(self, folder, *, files): return MyStore(folder, files=files)
        def fill(self, store, number): return store.put(...)        # what is acknowledged
        def check(self, store, acknowledged): ...                   # it is all there
        def policy(self): return MyPolicy()

    class TestMyStore(CompactionConformance):
        def make_factory(self):
            return MyStores()

pytest collects the inherited methods; without pytest, `check_compaction` runs them one after the other.

The class is long because it is a list: each test is a promise of its own, and none calls another.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from compactlib.errors import (
    BudgetSpent,
    Busy,
    Closed,
    CompactlibError,
    Conflict,
    CorruptData,
    InvalidInput,
    Stale,
    StorageError,
    TaskFailed,
)
from compactlib.files.disk import Files
from compactlib.outcome import Done, Failed, Skipped
from compactlib.report import VerifyReport
from compactlib.rewrite import RewriteTask
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.testing.compactions.factory import CompactionFactory
from compactlib.testing.compactions.kit import (
    Opened,
    attempt,
    closing,
    done,
    failed,
    is_a_value,
    let_go,
    one_done,
    open_files,
    skipped,
    spent,
    tells_why,
    truthful,
)
from compactlib.testing.crash import RecordingFiles, explore_kills
from compactlib.testing.faults.plan import Crash, Fault
from compactlib.testing.kit.conformance import ConformanceKit, Mismatch, expect, run_kit, same, shown
from compactlib.testing.kit.contract_actors import (
    EARLY_SECONDS,
    Call,
    CancelledAt,
    CheckedFiles,
    ExecutorBy,
    FenceBy,
    Gate,
    HeldAt,
    ObserverBy,
    PausedAt,
    PolicyBy,
    SpentAt,
    SteppingClock,
    TaskBy,
    asserts_of,
    failing_executor,
    garbage_executors,
    in_another_thread,
    lasting_threads,
    raising,
    raising_executors,
    soundly,
)

_THREADS = 4
_MOST_STEPS = 40
_MOST_PAUSES = 3
_MOST_OVERTAKEN = 20
_MOST_REFUSALS = 60
_MOST_STATES = 100


class Surprise(Exception):
    """An error that is none of the library's."""


class CompactionConformance(ConformanceKit):
    """Inherit in a test class, say how stores are made, and pytest finds the rest.

    Attributes:
        effort_percent: how many of the steps are tried where there may be many.
    """

    effort_percent: int = 100

    def make_factory(self) -> CompactionFactory:
        """What is to be tested."""
        raise NotImplementedError("say which stores are to be tested: make_factory returns a CompactionFactory")

    @contextlib.contextmanager
    def opened(self, folder: Path, *, fills: int = 0, name: str = "store") -> Iterator[Opened]:
        """A store in a folder of its own below `folder`, filled so often; closed at the end."""
        factory = self.make_factory()
        place = folder / name
        place.mkdir(exist_ok=True)
        files = CheckedFiles()
        opened = Opened(factory.open(place, files=files), place, files, [], factory)
        with closing(opened):
            for number in range(fills):
                opened.fill(number)
            yield opened

    @contextlib.contextmanager
    def reopened(self, opened: Opened) -> Iterator[Opened]:
        """The store of a folder that was closed, on a sound disk."""
        files = CheckedFiles()
        again = attrs.evolve(opened, store=opened.factory.open(opened.folder, files=files), files=files)
        with closing(again):
            yield again

    def some(self, count: int, most: int) -> Sequence[int]:
        """Numbers from 1 to `count`, evenly spread if they are more than `most` of the effort."""
        limit = max(2, most * self.effort_percent // 100)
        if count <= limit:
            return range(1, count + 1)
        return sorted({1 + place * (count - 1) // (limit - 1) for place in range(limit)})

    def test_the_factory_sees_what_is_missing_and_what_was_committed(self, tmp_path: Path) -> None:
        """Its `check` raises where what was acknowledged is not there; `state` and `contents` change with a commit.

        To do: compare each acknowledged value with what the store reads in check(), and answer what a commit replaces
        in state() and contents(); else the other promises could not be broken.
        """
        with self.opened(tmp_path, fills=1) as opened, self.opened(tmp_path, name="empty") as empty:
            found = _raised_by(lambda: opened.factory.check(empty.store, tuple(opened.acknowledged)))
            if not isinstance(found, Exception):
                raise Mismatch("check() is content with an empty store", "it to raise, since all of it is missing")
            before = {"state()": opened.state(), "contents()": opened.contents()}
            done(opened.compact(), "compact()")
            for name, after in {"state()": opened.state(), "contents()": opened.contents()}.items():
                if after == before[name]:
                    raise Mismatch(f"{name} is the same before and after a compaction", "it to change with a commit")

    # ---- what a plan says, and whether that is what is done

    def test_a_store_with_nothing_in_it_says_why_nothing_is_done(self, tmp_path: Path) -> None:
        """Its plan is empty, never `None`, and names the gate: a value, or a setting to change.

        To do: answer an empty plan whose `why` is like "0 of 0 bytes are dead, below min_dead_bytes=4096; lower it, or
        wait", and give compact() that same sentence as the reason of its Skipped.
        """
        with self.opened(tmp_path) as opened:
            plan = opened.plan()
            assert plan is not None, "plan() answered None"
            assert plan.is_empty, f"there is nothing in the store, and the plan is {plan!r}"
            tells_why(plan.why)
            same((plan.bytes_to_copy or 0, plan.bytes_freed or 0), (0, 0))
            same(skipped(opened.compact(), "compact() of an empty store").reason, plan.why)

    def test_a_plan_changes_nothing(self, tmp_path: Path) -> None:
        """Neither do a view, a status, an audit or a verification: not one byte.

        To do: measure and decide in memory; whatever has to be written, recovered or removed waits for compact().
        """
        with self.opened(tmp_path, fills=1) as opened:
            before, changes = opened.contents(), opened.files.count
            for name, call in {"view()": opened.view, "plan()": opened.plan, "status()": opened.store.status,
                               "plan(policy)": lambda: opened.plan(opened.factory.policy()),
                               "audit()": opened.store.audit, "verify()": opened.store.verify}.items():
                call()
                same(opened.files.count, changes, case=f"changes of the disk in {name}")
                same(opened.contents(), before, case=f"what is stored after {name}")
            done(opened.compact(), "compact() after plan()")
            opened.check("compact()")

    def test_views_plans_and_status_are_values(self, tmp_path: Path) -> None:
        """Frozen, picklable, printed in one line, and plain data in `to_dicts()`.

        To do: make it an attrs.frozen class of plain or frozen fields, on compactlib.report.Printed.
        """
        with self.opened(tmp_path, fills=1) as opened:
            plan, view, status = opened.plan(), opened.view(), opened.store.status()
            for what, value in {"plan()": plan, "view()": view, "status()": status}.items():
                is_a_value(what, value)
            same(plan.is_empty, False, case="is_empty, after filling the store")
            assert plan.why.strip(), "the plan does not say why"
            for name in ("bytes_to_copy", "bytes_freed", "bytes_needed", "bytes_available"):
                number = getattr(plan, name)
                assert number is None or (type(number) is int and (number >= 0 or name == "bytes_freed")), (
                    f"{name} is {shown(number)}; give bytes, or None where it is unknown")
            if plan.is_exact and (plan.bytes_to_copy is None or plan.bytes_freed is None):
                raise Mismatch(f"is_exact with bytes_to_copy={plan.bytes_to_copy}, bytes_freed={plan.bytes_freed}",
                               "both as numbers, or is_exact=False")
            same((status.is_busy, status.last_error, status.failures), (False, "", 0), case="an idle store's status")

    def test_equal_views_give_equal_plans(self, tmp_path: Path) -> None:
        """A plan is a function of a view, a policy and a time.

        To do: decide by the view alone; take what else is needed (room, time) when the view is made or from the store's
        clock, and draw nothing.
        """
        with self.opened(tmp_path, fills=1) as opened:
            view, policy = opened.view(), opened.factory.policy()
            same(opened.view(), view, case="two views of an idle store")
            same(opened.plan(view=view), opened.plan(view=pickle.loads(pickle.dumps(view))), opened.plan())
            same(opened.plan(policy, view=view), opened.plan(policy, view=view), opened.plan(policy))

    def test_a_plan_is_carried_out_as_it_says(self, tmp_path: Path) -> None:
        """What it copies and frees is what is then copied and freed, to the byte if it says so.

        To do: count what is written to disk, headers, indexes and footers included, and what is removed; if that cannot
        be known before, say is_exact=False, or None.
        """
        with self.opened(tmp_path, fills=2) as opened:
            plan = opened.plan()
            before = opened.factory.stored_bytes(opened.folder, opened.store) if plan.is_exact else 0
            copied = opened.factory.watch_copies(opened.folder, opened.store) if plan.is_exact else int
            done(opened.compact(plan), "compact(plan)")
            found = copied()
            assert isinstance(opened.reclaim(), Done | Skipped), "reclaim() after compact() failed"
            if plan.is_exact:
                after = opened.factory.stored_bytes(opened.folder, opened.store)
                same(f"{found} bytes copied", f"{plan.bytes_to_copy} bytes copied", case=repr(plan))
                same(f"{before - after} bytes freed", f"{plan.bytes_freed} bytes freed", case=repr(plan))
            opened.check("compact(plan)")

    def test_a_second_run_finds_nothing_to_do(self, tmp_path: Path) -> None:
        """It is `Skipped` with the reason of the empty plan, and changes nothing.

        To do: plan nothing that brings nothing: a segment that was just written is not worth copying again.
        """
        with self.opened(tmp_path, fills=1) as opened:
            for _ in range(opened.factory.rounds_to_rest):
                outcome = opened.compact()
            opened.reclaim()
            plan, before = opened.plan(), opened.contents()
            if not plan.is_empty:
                raise Mismatch(f"after {outcome!r} the plan is {plan!r}", "an empty plan")
            tells_why(plan.why)
            same(skipped(opened.compact(), "the second compact()").reason, plan.why)
            same(opened.contents(), before)
            opened.check("two compactions")

    def test_a_plan_of_another_store_is_refused(self, tmp_path: Path) -> None:
        """It raises `InvalidInput`, and changes nothing.

        To do: note in the plan which store it is of, and compare before anything else.
        """
        with self.opened(tmp_path, fills=1) as opened, self.opened(tmp_path, fills=1, name="other") as other:
            foreign, before = other.plan(), opened.contents()
            with expect(InvalidInput):
                opened.compact(foreign)
            same(opened.contents(), before)
            opened.idle("a plan of another store")
            opened.finish("a plan of another store")

    def test_a_plan_and_a_policy_together_are_refused(self, tmp_path: Path) -> None:
        """Which of them should hold? It raises `InvalidInput`, and changes nothing.

        To do: look whether both are given before anything else.
        """
        with self.opened(tmp_path, fills=1) as opened:
            plan, before = opened.plan(), opened.contents()
            with expect(InvalidInput):
                opened.compact(plan, policy=opened.factory.policy())
            same(opened.contents(), before)
            opened.finish("a plan and a policy together")

    def test_an_outdated_plan_is_stale(self, tmp_path: Path) -> None:
        """A plan whose sources are gone is `Failed(Stale)`, and changes nothing.

        To do: compare what the plan takes with what is there, before anything is written; answer Failed with an error
        below Stale.
        """
        with self.opened(tmp_path, fills=1) as opened:
            plan = opened.plan()
            done(opened.compact(plan), "compact(plan)")
            opened.fill(1)
            before = opened.contents()
            outcome = failed(opened.compact(plan), Stale, "compact() with a plan that was carried out before")
            same(outcome.changed, "no")
            same(opened.contents(), before)
            opened.finish("an outdated plan")

    def test_a_plan_that_writes_came_after_takes_nothing_of_theirs(self, tmp_path: Path) -> None:
        """It is carried out or stale; what was written meanwhile is there either way.

        To do: freeze in the plan what it takes; what came later is none of its business.
        """
        with self.opened(tmp_path, fills=1) as opened:
            plan = opened.plan()
            opened.fill(1)
            outcome = opened.compact(plan)
            if not isinstance(outcome, Done):
                failed(outcome, Stale, "compact() with a plan made before the last write")
            opened.check("a plan that writes came after")
            opened.finish("a plan that writes came after")

    def test_a_policy_given_to_plan_or_compact_is_the_one_that_is_asked(self, tmp_path: Path) -> None:
        """It is asked with a view, and a time from the store's clock.

        To do: pass the policy that was given through to the planning, and clock.now() as `now`.
        """
        with self.opened(tmp_path, fills=1) as opened:
            policy = PolicyBy(opened.factory.policy(), lambda view, now: PolicyBy.GOES_ON)
            opened.plan(policy)
            asked = len(policy.times)
            assert asked, "plan(policy) did not ask it"
            done(opened.compact(policy=policy), "compact(policy=...)")
            assert len(policy.times) > asked, "compact(policy=...) did not ask it"
            assert all(isinstance(now, float) for now in policy.times), f"it was asked with the times {policy.times}"
            opened.check("compact(policy=...)")

    def test_arguments_that_are_none(self, tmp_path: Path) -> None:
        """A number for a plan, a policy, an executor, a budget, an observer or a fence is `InvalidInput`.

        To do: look at the types of all arguments at the public face, before anything begins: no bare TypeError or
        AttributeError comes out of it, and nothing stays held.
        """
        with self.opened(tmp_path, fills=1) as opened:
            before = opened.contents()
            for method, name in [("plan", "policy"), ("plan", "view"), ("view", "budget"), ("reclaim", "budget"),
                                 *(("compact", name) for name in ("plan", "policy", "executor", "budget", "observer",
                                                                  "fence"))]:
                found = _raised(getattr(opened, method), name)
                same(found, "InvalidInput", case=f"{method}({name}=42)")
                same(opened.contents(), before, case=f"what is stored after {method}({name}=42)")
            opened.finish("arguments that are none")

    def test_reclaim_verify_and_audit_answer(self, tmp_path: Path) -> None:
        """`reclaim` an outcome, `verify` a sound report of what it read, `audit` nothing.

        To do: answer Done or Skipped from reclaim(), a compactlib.report.VerifyReport from verify(), and None from
        audit(), which raises AuditFailed when a rule is broken.
        """
        with self.opened(tmp_path, fills=1) as opened:
            for when in ("before", "after"):
                assert isinstance(opened.reclaim(), Done | Skipped), f"reclaim() {when} a compaction: not Done, Skipped"
                report: object = opened.store.verify()
                if not isinstance(report, VerifyReport) or not report.is_sound:
                    raise Mismatch(f"verify() {when} a compaction: {report!r}: {getattr(report, 'findings', '')}",
                                   "a VerifyReport that is sound")
                assert report.records > 0, f"verify() has looked at no records: {report!r}"
                same(opened.store.audit(), None)
                opened.check(f"reclaim() {when} a compaction")
                opened.compact()
            asserts = asserts_of(type(opened.store).audit)
            assert not asserts, f"audit() has `{asserts[0]}`, which says nothing under python -O; raise AuditFailed"

    def test_damage_is_found(self, tmp_path: Path) -> None:
        """After stored bytes have changed behind its back, `verify` is not sound, or opening says `CorruptData`.

        To do: read everything in verify(), compare with its checksums, and list what differs as findings.
        """
        with self.opened(tmp_path, fills=1) as opened:
            pass
        if not opened.factory.damage(opened.folder):
            return
        try:
            with self.reopened(opened) as again:
                report = again.store.verify()
        except CorruptData:
            return
        assert not report.is_sound, f"bytes have changed, and verify() says {report!r}"

    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        """After `close` everything raises `Closed`; closing again does nothing, and the folder is free.

        To do: ask first whether it is closed, in each method; let the lock go last in close(), and only once.
        """
        with self.opened(tmp_path, fills=1) as opened:
            plan = opened.plan()
            opened.store.close()
            for name, call in {"view()": opened.view, "plan()": opened.plan, "compact()": opened.compact,
                               "compact(plan)": lambda: opened.compact(plan), "reclaim()": opened.reclaim,
                               "verify()": opened.store.verify, "status()": opened.store.status,
                               "audit()": opened.store.audit}.items():
                found = attempt(call)
                if not isinstance(found, Closed):
                    raise Mismatch(f"{name}: {found!r}", "Closed to be raised")
            opened.store.close()
            opened.factory.release(opened.store)
            with self.reopened(opened) as again:
                again.finish("closing and opening again")
                again.store.audit()

    # ---- a store owns its compaction: one at a time, and `close` ends it

    def test_a_second_owner_is_refused(self, tmp_path: Path) -> None:
        """A folder that is open cannot be opened again: `Busy`. Once it is closed it can.

        To do: hold a compactlib.files.folder_lock.FolderLock from before the first read until the end of close().
        """
        with self.opened(tmp_path, fills=1) as opened:
            if not opened.factory.has_owner:
                return
            with expect(Busy):
                opened.factory.open(opened.folder, files=opened.files)
            opened.check("a second opening was refused")
        with self.reopened(opened) as again:
            again.check("closing and opening again")

    def test_busy_is_skipped_at_once(self, tmp_path: Path) -> None:
        """While one compaction stands in its commit, a second one and a reclaim are `Skipped`, and status says busy.

        To do: begin each run with Ownership.begin(), and answer Skipped if it yields None; never wait for the other,
        and raise nothing. Where stores are shared, one of the two commits, and the other is Skipped.
        """
        with self.opened(tmp_path, fills=1) as opened, Gate() as gate:
            first = Call(lambda: opened.compact(fence=FenceBy(gate.hold)), "compact()")
            first.holds_until(gate)
            assert Call(opened.store.status, "status() during a commit").answer().is_busy, (
                "status().is_busy is false while a compaction runs")
            second = Call(lambda: opened.compact(), "a second compact() during a commit").answer()
            reclaimed = Call(opened.reclaim, "reclaim() during a commit").answer() if opened.factory.has_owner else None
            gate.open()
            outcomes = [first.answer(), second]
            if opened.factory.has_owner:
                assert skipped(second, "a second compact() while one runs").is_busy, (
                    f"{second!r} is Skipped because another run is at it, and is_busy is false")
                skipped(reclaimed, "reclaim() while a compaction runs")
                done(first.answer(), "the compaction that was first")
            one_done(outcomes, "two at once")
            opened.finish("two compactions at once")

    def test_compacting_from_within_a_compaction_is_skipped(self, tmp_path: Path) -> None:
        """An observer, a policy or a fence that compacts or reclaims gets `Skipped`; nothing waits for itself.

        To do: answer Skipped(..., is_busy=True) to every caller while a run is under way, the run itself included.
        """
        if not self.make_factory().has_owner:
            return
        for name in ("observer", "policy", "fence"):
            with self.opened(tmp_path, fills=1, name=f"store-{name}") as opened:
                answers: list[Any] = []

                def again(*_: object, opened: Opened = opened, answers: list[Any] = answers) -> object:
                    if not answers:
                        answers.append(opened.compact())
                        answers.append(opened.reclaim())
                    return PolicyBy.GOES_ON

                doer: dict[str, Any] = {"observer": ObserverBy(again), "fence": FenceBy(again),
                                        "policy": PolicyBy(opened.factory.policy(), again)}
                call = partial(opened.compact, **{name: doer[name]})
                outcome = Call(call, f"a compaction whose {name} compacts").answer()
                for answer in answers:
                    assert skipped(answer, f"compacting within the {name} of a compaction").is_busy, (
                        f"{answer!r} is Skipped because the store is busy, and is_busy is false")
                done(outcome, f"a compaction whose {name} compacts")
                opened.finish(f"a compaction whose {name} compacts")

    def test_of_two_owners_of_a_shared_store_one_commits(self, tmp_path: Path) -> None:
        """Another opening of the same store overtakes a compaction that stands still: the slower one is `Skipped`.

        To do: commit with a condition on what was read, look what came of it, and answer Skipped when another was
        first and has done the same.
        """
        for number, place in enumerate(("fence", "executor")):
            with self.opened(tmp_path, fills=1, name=f"store-{number}") as opened, Gate() as gate:
                if opened.factory.has_owner or (place == "executor" and not opened.factory.uses_executor):
                    continue
                held: dict[str, Any] = {"fence": FenceBy(gate.hold)} if place == "fence" else {"executor": _held(gate)}
                slow = Call(partial(opened.compact, **held), "the slower compaction")
                slow.holds_until(gate)
                with self.reopened(opened) as other:
                    fast = Call(other.compact, "the faster compaction").answer()
                    gate.open()
                    outcomes = [slow.answer(), fast]
                    one_done(outcomes, f"one held in its {place}, one beside it")
                    other.finish("two owners that compact at once")
                opened.finish("two owners that compact at once")

    def test_readers_go_on_through_a_compaction(self, tmp_path: Path) -> None:
        """A reader that opened the store before reads the same before the commit, in it, and after it.

        To do: keep what is replaced until no reader can hold it any more, and let readers find the new names.
        """
        with self.opened(tmp_path, fills=2) as opened, Gate() as gate, contextlib.ExitStack() as readers:
            found = opened.factory.reader(opened.folder)
            if found is None:
                return
            readers.callback(found.close)
            opened.reads(found, "opening a reader")
            compaction = Call(lambda: opened.compact(fence=FenceBy(gate.hold)), "compact()")
            compaction.holds_until(gate)
            opened.reads(found, "a commit has begun")
            gate.open()
            done(compaction.answer(), "a compaction beside which was read")
            opened.reads(found, "a compaction, by a reader from before")
            fresh = opened.factory.reader(opened.folder)
            readers.callback(fresh.close)
            opened.reads(fresh, "a compaction, by a new reader")

    def test_of_many_threads_that_begin_at_once_one_compacts(self, tmp_path: Path) -> None:
        """All come back with `Done` or `Skipped`; nothing is raised and nothing lost.

        To do: take the run under a lock (Ownership does), and answer every other caller Skipped.
        """
        with self.opened(tmp_path, fills=1) as opened:
            barrier = threading.Barrier(_THREADS)

            def compact() -> Any:
                barrier.wait()
                return opened.compact()

            calls = [Call(compact, f"compact() in thread {number}") for number in range(_THREADS)]
            outcomes = [call.answer() for call in calls]
            strange = [outcome for outcome in outcomes if not isinstance(outcome, Done | Skipped)]
            assert not strange, f"of {_THREADS} compactions at once: {strange}"
            assert any(isinstance(outcome, Done) for outcome in outcomes), f"none of them compacted: {outcomes}"
            opened.finish("compactions in many threads")

    def test_writers_go_on_beside_a_compaction(self, tmp_path: Path) -> None:
        """While tasks run, writing, views and plans come back; what is written stays.

        To do: hold no lock that writers need while an executor works; take it for the commit alone.
        """
        with self.opened(tmp_path, fills=1) as opened, Gate() as gate:
            if not opened.factory.uses_executor:
                return
            compaction = Call(lambda: opened.compact(executor=_held(gate)), "compact()")
            compaction.holds_until(gate)
            for name, call in {"fill()": lambda: opened.fill(1), "view()": opened.view, "plan()": opened.plan,
                               "audit()": opened.store.audit, "status()": opened.store.status}.items():
                Call(call, f"{name} while tasks run").answer()
            gate.open()
            done(compaction.answer(), "a compaction beside which was written")
            opened.check("writes beside a compaction")
            opened.finish("writes beside a compaction")

    def test_close_cancels_and_waits_for_what_copies(self, tmp_path: Path) -> None:
        """It cancels the budget that the tasks were given, and comes back when the run has ended.

        To do: give the executor the run's budget (Run.budget), cancel it in close(), and wait for the run before
        anything is released; Ownership.close() does both.
        """
        with self.opened(tmp_path, fills=1) as opened, Gate() as gate:
            if not opened.factory.uses_executor:
                return
            lent: list[Budget] = []

            def run(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
                lent.append(budget)
                gate.hold()
                return soundly(tasks, budget, observer)

            mine = Budget()
            outcome = self._closed_meanwhile(opened, gate, budget=mine, executor=ExecutorBy(run))
            assert lent[0].cancelled, "close() came back, and the budget of the tasks was not cancelled"
            assert not mine.cancelled, "close() has cancelled the caller's budget, who may need it for other stores"
            if not isinstance(outcome, Failed) or not isinstance(outcome.error, BudgetSpent):
                raise Mismatch(f"the compaction during which the store was closed: {outcome!r}", "Failed(BudgetSpent)")

    def test_closing_lets_everything_go(self, tmp_path: Path) -> None:
        """After compactions that were done, interrupted and refused, no file of the folder is open, no thread lives.

        To do: close what was opened in a `finally`, the descriptors of readers included, and join each thread.
        """
        threads = set(threading.enumerate())
        refusal = Conflict("a newer token was admitted")
        given: list[dict[str, Any]] = [
            {}, {"fence": FenceBy(raising(refusal))}, {"observer": ObserverBy(raising(KeyboardInterrupt()))},
            {"policy": PolicyBy(self.make_factory().policy(), raising(refusal))}]
        for number, named in enumerate(given):
            with self.opened(tmp_path, fills=1, name=f"store-{number}") as opened:
                if not opened.factory.has_owner:
                    return
                with contextlib.suppress(Conflict, KeyboardInterrupt):
                    opened.compact(**named)
                opened.view()
                opened.check("a compaction")
            left = [*open_files(opened.folder), *lasting_threads(threads)]
            if left:
                raise Mismatch(f"after compact({', '.join(named)}) and close() there are still open: {shown(left)}",
                               "every file to be closed and every thread to have ended")

    def test_close_waits_for_a_commit(self, tmp_path: Path) -> None:
        """A commit that has begun ends before `close` comes back.

        To do: wait in close() for the end of the run; Ownership.close() does.
        """
        with self.opened(tmp_path, fills=1) as opened, Gate() as gate:
            outcome = self._closed_meanwhile(opened, gate, fence=FenceBy(gate.hold))
            if not isinstance(outcome, Done | Failed):
                raise Mismatch(f"the compaction during which the store was closed: {outcome!r}", "Done or Failed")

    def _closed_meanwhile(self, opened: Opened, gate: Gate, **named: Any) -> Any:
        """The outcome of a compaction that was held at the gate while another thread closed the store."""
        compaction = Call(lambda: opened.compact(**named), "compact()")
        compaction.holds_until(gate)
        closings = [Call(opened.store.close, f"close() {nth} during a compaction") for nth in ("once", "twice")]
        for ending in closings:
            if ending.ended.wait(EARLY_SECONDS):
                ending.answer()
                raise Mismatch("close() came back while the compaction still ran", "it to wait for the run's end")
        gate.open()
        for ending in closings:
            ending.answer()
        outcome = compaction.answer()
        if not isinstance(attempt(opened.compact), Closed):
            raise Mismatch("after close() compact() did not raise Closed", "Closed")
        opened.factory.release(opened.store)
        with self.reopened(opened) as again:
            again.finish("closing during a compaction")
        return outcome

    def test_closing_from_a_policy_is_busy(self, tmp_path: Path) -> None:
        """A policy that closes the store gets `Busy`; nothing hangs, and the compaction goes on.

        To do: let the run begin before its policy is asked, so that Ownership knows whose doing it is.
        """
        with self.opened(tmp_path, fills=1) as opened:
            answers: list[object] = []

            def close(view: Any, now: float) -> object:
                answers.append(attempt(opened.store.close))
                return PolicyBy.GOES_ON

            self._closed_within(opened, answers, policy=PolicyBy(opened.factory.policy(), close))

    def test_closing_from_a_fence_is_busy(self, tmp_path: Path) -> None:
        """A fence that closes the store gets `Busy`; nothing hangs, and the compaction goes on.

        To do: enter the fence in the thread that runs, inside Run.inside().
        """
        with self.opened(tmp_path, fills=1) as opened:
            answers: list[object] = []
            self._closed_within(opened, answers, fence=FenceBy(
                lambda number: answers.append(attempt(opened.store.close))))

    def test_closing_from_an_observer_is_busy(self, tmp_path: Path) -> None:
        """An observer that closes the store at its first notification gets `Busy`; the compaction goes on.

        To do: notify through Run.observer(observer), which marks on each thread whose doing it is.
        """
        with self.opened(tmp_path, fills=1) as opened:
            answers: list[object] = []

            def close() -> None:
                if not answers:
                    answers.append(attempt(opened.store.close))

            self._closed_within(opened, answers, observer=ObserverBy(close))

    def test_closing_from_an_executor_or_a_task_is_busy(self, tmp_path: Path) -> None:
        """So does whatever runs on behalf of the compaction, also on a thread that knows nothing of its caller.

        To do: give the executor Run.observer(observer): attempt_task marks by it what a task does, on any thread.
        """
        for number, around in enumerate((soundly, in_another_thread)):
            with self.opened(tmp_path, fills=1, name=f"store-{number}") as opened:
                if not opened.factory.uses_executor:
                    return
                answers: list[object] = []

                def close(opened: Opened = opened, answers: list[object] = answers) -> None:
                    answers.append(attempt(opened.store.close))

                def run(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer,
                        around: Callable[..., Iterable[Any]] = around,
                        close: Callable[[], None] = close) -> Iterable[Any]:
                    close()
                    return around([TaskBy(task, close) for task in tasks], budget, observer)

                self._closed_within(opened, answers, executor=ExecutorBy(run))

    def _closed_within(self, opened: Opened, answers: list[object], **named: Any) -> None:
        """The compaction within which the store was to be closed comes to its end, and each closing was `Busy`."""
        outcome = Call(lambda: opened.compact(**named), "a compaction from within which the store is closed").answer()
        assert answers, f"the {', '.join(named)} given to compact() was never called: {outcome!r}"
        strange = [answer for answer in answers if not isinstance(answer, Busy)]
        if strange:
            raise Mismatch(f"close() from within answered {strange[0]!r}", "Busy to be raised")
        done(outcome, "the compaction from within which the store was to be closed")
        opened.finish("closing from within")

    # ---- whatever those do who watch, decide, copy, guard or limit: it is named, and the next goes on

    def test_observers_that_raise_break_nothing(self, tmp_path: Path) -> None:
        """Watching breaks nothing: the compaction ends as it would have.

        To do: notify through compactlib.runtime.observe.telling(observer) or Run.observer(observer), and nothing else.
        """
        with self.opened(tmp_path, fills=1) as opened:
            observer = ObserverBy(raising(Surprise("the observer's own bug")))
            done(opened.compact(observer=observer), "a compaction whose observer raises")
            assert observer.told, "the observer given to compact() was never notified"
            opened.finish("a compaction whose observer raises")

    def test_observers_may_ask_the_store(self, tmp_path: Path) -> None:
        """Inside a notification, an observer gets a status, a view and a plan; nothing waits for itself.

        To do: never notify inside a lock: keep what is to be reported until after the lock's release (LaterObserver).
        """
        for name, executor in self._executors().items():
            with self.opened(tmp_path, fills=1, name=f"store {name}") as opened:
                answers: list[object] = []

                def ask(opened: Opened = opened, answers: list[object] = answers) -> None:
                    # One thread each, so that a lock that its holder may take again does not hide behind that.
                    for asked in (opened.store.status, opened.view, opened.plan):
                        answers.append(attempt(asked))
                        asking = Call(partial(attempt, asked), "asking the store from an observer")
                        answers.append(asking.answer(times=2))

                watching = ObserverBy(ask)
                call = partial(opened.compact, observer=watching, **executor)
                outcome = Call(call, "a compaction whose observer asks").answer()
                done(outcome, "a compaction whose observer asks the store")
                assert watching.told, "the observer given to compact() was never notified"
                same(len(answers), 6 * watching.told, case="answers that the observer got")
                strange = [answer for answer in answers if isinstance(answer, CompactlibError)]
                assert not strange, f"asking the store from an observer raised {strange[0]!r}"

    def _executors(self) -> Mapping[str, Mapping[str, Any]]:
        if not self.make_factory().uses_executor:
            return {"without": {}}
        return {"in this thread": {}, "in another thread": {"executor": ExecutorBy(in_another_thread)}}

    def test_what_a_policy_raises_comes_through(self, tmp_path: Path) -> None:
        """A policy is asked, not notified: its error is the caller's, and nothing stays held.

        To do: let what choose() raises pass as it is, in plan() and in compact(), and release the run in a `finally`.
        """
        with self.opened(tmp_path, fills=1) as opened:
            before = opened.contents()
            for error in (Surprise("the policy's own bug"), Conflict("the policy's own refusal")):
                policy = PolicyBy(opened.factory.policy(), raising(error))
                for name, call in {"plan": partial(opened.plan, policy),
                                   "compact": partial(opened.compact, policy=policy)}.items():
                    same(_raised_by(call), error, case=f"{name}() with a policy that raises it")
                    same(opened.contents(), before)
            opened.finish("a policy that raises")

    def test_a_policy_that_answers_nothing_is_named(self, tmp_path: Path) -> None:
        """`None`, or what is no choice, is `InvalidInput` with the policy's name.

        To do: look at what choose() returned before using it, and say whose answer it was, and which type is needed.
        """
        with self.opened(tmp_path, fills=1) as opened:
            before = opened.contents()
            for answer in (None, 42, "everything"):
                policy = PolicyBy(opened.factory.policy(), _answering(answer))
                for name, call in {"plan": partial(opened.plan, policy),
                                   "compact": partial(opened.compact, policy=policy)}.items():
                    found = _raised_by(call)
                    if not isinstance(found, InvalidInput) or policy.name not in str(found):
                        raise Mismatch(f"{name}() with a policy that answers {answer!r}: {found!r}",
                                       f"InvalidInput that names the policy {policy.name!r}")
                    same(opened.contents(), before)
            opened.finish("a policy that answers nothing")

    def test_an_executor_that_does_wrong_is_a_failure(self, tmp_path: Path) -> None:
        """Whether it raises, fails a task, answers garbage or forgets a task: `Failed`, and the next one goes on.

        To do: catch Exception around the executor as TaskFailed, check that each task was answered exactly once and by
        a RewriteResult or a RewriteFailure (`executors.tasks.answers_of` does), and release the run in a `finally`.
        """
        raised = raising_executors(Surprise("the executor's own bug"))
        refused = Conflict("the task's own refusal")
        executors: dict[str, ExecutorBy] = {**raised, **garbage_executors(),
                                            "fails each task": failing_executor(refused)}
        for number, (name, executor) in enumerate(executors.items()):
            with self.opened(tmp_path, fills=1, name=f"store-{number}") as opened:
                if not opened.factory.uses_executor:
                    return
                before = opened.state()
                kind = TaskFailed if name in raised else CompactlibError
                outcome = failed(opened.compact(executor=executor), kind, f"an executor that {name}")
                assert executor.runs, f"the executor that {name} was never called"
                if executor.tasks and name == "fails each task":
                    same(outcome.error, refused)
                truthful(opened, outcome, before, f"an executor that {name}")
                opened.finish(f"an executor that {name}")

    def test_interrupts_pass_and_release_everything(self, tmp_path: Path) -> None:
        """`KeyboardInterrupt` and `SystemExit`, from wherever they come, propagate; the next compaction goes on.

        To do: release runs, locks and private files in `finally`; catch Exception, never BaseException.
        """
        for error in (KeyboardInterrupt("the host's user"), SystemExit("the host's end")):
            for name, named in self._interrupting(error).items():
                with self.opened(tmp_path, fills=1, name=f"store {type(error).__name__} {name}") as opened:
                    found = _raised_by(partial(opened.compact, **named))
                    if found is not error:
                        raise Mismatch(f"{error!r} from {name}: {found!r}", "it to come through")
                    opened.idle(f"{error!r} from {name}")
                    opened.finish(f"{error!r} from {name}")

    def _interrupting(self, error: BaseException) -> Mapping[str, Mapping[str, Any]]:
        factory = self.make_factory()
        found: dict[str, Mapping[str, Any]] = {
            "a policy": {"policy": PolicyBy(factory.policy(), raising(error))},
            "a fence": {"fence": FenceBy(raising(error))},
            "an observer": {"observer": ObserverBy(raising(error))},
        }
        if factory.uses_executor:
            found.update({f"an executor that {name}": {"executor": executor}
                          for name, executor in raising_executors(error).items()})
        return found

    def test_a_fence_is_entered_around_each_commit(self, tmp_path: Path) -> None:
        """Whatever is committed is committed inside the fence, and while it may not, nothing is.

        To do: put `with fence.guard():` around each commit, in the thread that commits.
        """
        with self.opened(tmp_path, fills=2) as opened:
            before = opened.state()
            seen: list[object] = []
            fence = FenceBy(lambda number: seen.append(opened.state()))
            done(opened.compact(fence=fence), "compact(fence=...)")
            assert fence.entered, "something was committed, and the fence was never entered"
            same(seen[0], before, case="the store's state when its fence is entered first")
            opened.finish("a fence")

    def test_a_fence_that_refuses_keeps_its_commit_from_happening(self, tmp_path: Path) -> None:
        """A library's error on entering is `Failed` with that very error; what was not committed is as it was.

        To do: enter the fence before the first change that others see; answer Failed(error, changed=...) truthfully:
        "no" if no commit came before, else "partly".
        """
        commits = self._commits(tmp_path)
        for number in range(1, commits + 1):
            with self.opened(tmp_path, fills=2, name=f"store-{number}") as opened:
                before, refusal = opened.state(), Conflict("a newer token was admitted")
                fence = FenceBy(_raising_at(number, refusal))
                outcome = failed(opened.compact(fence=fence), Conflict, f"a fence that refuses entry {number}")
                assert outcome.error is refusal, f"the fence raised {refusal!r}, the outcome is {outcome!r}"
                if number == 1:
                    same(outcome.changed, "no", case="changed, after the first entry was refused")
                truthful(opened, outcome, before, f"a fence that refuses entry {number} of {commits}")
                opened.finish(f"a fence that refuses entry {number} of {commits}")

    def test_what_else_a_fence_raises_comes_through(self, tmp_path: Path) -> None:
        """An error that is none of the library's is the host's bug: it propagates, and everything was released.

        To do: catch CompactlibError around the fence's guard, and nothing wider.
        """
        with self.opened(tmp_path, fills=1) as opened:
            error = Surprise("the fence's own bug")
            found = _raised_by(lambda: opened.compact(fence=FenceBy(raising(error))))
            if found is not error:
                raise Mismatch(f"{error!r} from a fence: {found!r}", "it to come through")
            opened.finish("a fence that raises")

    def _commits(self, folder: Path) -> int:
        with self.opened(folder, fills=2, name="counting") as opened:
            fence = FenceBy()
            done(opened.compact(fence=fence), "compact(fence=...)")
            return fence.entered

    def test_a_budget_that_was_cancelled_before_lets_nothing_begin(self, tmp_path: Path) -> None:
        """It is `Failed(BudgetSpent)`, and nothing has changed.

        To do: ask budget.check() before the first step.
        """
        with self.opened(tmp_path, fills=1) as opened:
            budget, before, fence = Budget(), opened.state(), FenceBy()
            budget.cancel()
            outcome = spent(opened.compact(budget=budget, fence=fence), "a budget that was cancelled before")
            same((outcome.changed, fence.entered), ("no", 0))
            same(opened.state(), before)
            opened.finish("a budget that was cancelled before")

    def test_looking_and_reclaiming_may_be_cancelled_too(self, tmp_path: Path) -> None:
        """With a cancelled budget `view` and `verify` raise `BudgetSpent` or answer, `reclaim` fails by it or answers.

        To do: ask the budget where much has to be counted or read, and let nothing else come out of it.
        """
        with self.opened(tmp_path, fills=1) as opened:
            budget = Budget()
            budget.cancel()
            for name, call in {"view": opened.view, "verify": opened.store.verify}.items():
                found = attempt(partial(call, budget=budget))
                assert found is not None, f"{name}(budget=...) answered None"
                if isinstance(found, CompactlibError) and not isinstance(found, BudgetSpent):
                    raise Mismatch(f"{name}() with a cancelled budget: {found!r}", "BudgetSpent, or its value")
            outcome = opened.reclaim(budget=budget)
            if not isinstance(outcome, Done | Skipped):
                spent(outcome, "reclaim() with a cancelled budget")
            opened.finish("looking with a cancelled budget")

    def test_a_budget_that_is_spent_at_any_step(self, tmp_path: Path) -> None:
        """At each step at which it is asked: `Failed(BudgetSpent)`, all is there, and the next compaction goes on.

        To do: ask the budget that was given (or one lent from it) before each chunk that is written, and before a
        commit begins, not inside it; let BudgetSpent end the work.
        """
        outcomes = list(self._at_steps(tmp_path, _MOST_STEPS, "spent", SpentAt))
        assert any(isinstance(outcome, Failed) for outcome in outcomes), (
            f"the budget was spent at each of {len(outcomes)} steps, and every compaction was Done all the same")

    def test_a_budget_that_is_cancelled_between_any_two_steps(self, tmp_path: Path) -> None:
        """The next step that asks it ends the work; where none does any more, the work ends by itself.

        To do: ask the budget often, so that a cancelled compaction ends soon.
        """
        for _ in self._at_steps(tmp_path, _MOST_STEPS // 2, "cancelled", CancelledAt):
            pass

    def test_a_pause_between_any_two_steps(self, tmp_path: Path) -> None:
        """Work that is paused waits, and goes on when it is resumed.

        To do: wait in the budget alone, with no lock held.
        """
        for outcome in self._at_steps(tmp_path, _MOST_PAUSES, "paused", PausedAt):
            done(outcome, "a compaction that was paused and resumed")

    def test_an_owner_that_stands_still_at_any_step_is_overtaken(self, tmp_path: Path) -> None:
        """Where a store is shared: it wakes when another has compacted, undoes nothing of that, and is done or skipped.

        To do: commit and delete with a condition on what was read; a former owner may wake at any step.
        """
        if self.make_factory().has_owner:
            return
        with self.opened(tmp_path, fills=2, name="counting overtaken") as opened:
            clock = SteppingClock()
            done(opened.compact(budget=Budget(deadline=1.0, clock=clock)), "a compaction with a deadline far away")
        for number in self.some(clock.readings, _MOST_OVERTAKEN):
            with self.opened(tmp_path, fills=2, name=f"store overtaken {number}") as opened, Gate() as gate:
                when = f"an owner that stood still at step {number}, and was overtaken"
                budget = Budget(deadline=1.0, clock=HeldAt(number, gate))
                slow = Call(partial(opened.compact, budget=budget), "the owner that stands still")
                slow.holds_until(gate)
                with self.reopened(opened) as other:
                    outcomes = [Call(other.compact, "the compaction that overtakes").answer()]
                    other.check(when)
                    other.fill(2)
                    gate.open()
                    outcomes.append(slow.answer())
                    if not all(isinstance(each, Done | Skipped) for each in outcomes) or not any(
                            isinstance(each, Done) for each in outcomes):
                        raise Mismatch(f"{when}: {outcomes}", "Done and Skipped, or both Done")
                    other.check(when)
                    other.finish(when)
                opened.finish(when)

    def _at_steps(self, folder: Path, most: int, what: str, steered: Callable[[int], SteppingClock]) -> Iterator[Any]:
        """The outcomes of compactions to whose budget something was done, each at another of its steps."""
        with self.opened(folder, fills=2, name=f"counting {what}") as opened:
            clock = SteppingClock()
            done(opened.compact(budget=Budget(deadline=1.0, clock=clock)), "a compaction with a deadline far away")
        if not clock.readings:
            raise Mismatch("a whole compaction never asked the budget", "it to be asked before each chunk")
        for number in self.some(clock.readings, most):
            with self.opened(folder, fills=2, name=f"store {what} {number}") as opened:
                clock = steered(number)
                clock.budget = Budget(deadline=1.0, clock=clock)
                before, when = opened.state(), f"a budget that is {what} at its step {number}"
                call = partial(opened.compact, budget=clock.budget)
                outcome = Call(call, f"a compaction with {when}").answer()
                opened.check(when)
                if not isinstance(outcome, Done):
                    truthful(opened, spent(outcome, when), before, when)
                elif not opened.plan().is_empty:
                    raise Mismatch(f"{when}: {outcome!r}, and {opened.plan()!r} is left", "Failed(BudgetSpent)")
                opened.idle(when)
                opened.finish(when)
                yield outcome

    # ---- nothing that a disk does loses what was acknowledged

    def test_without_room_nothing_begins(self, tmp_path: Path) -> None:
        """It is `Skipped`, and names what is needed and what there is.

        To do: ask files.available_bytes(folder) before the first change, and compare with plan.bytes_needed.
        """
        with self.opened(tmp_path, fills=1) as opened:
            plan = opened.plan()
            if not plan.bytes_needed or plan.bytes_available is None:
                return
            room = opened.files.room = plan.bytes_needed - 1
            before, fence = opened.contents(), FenceBy()
            for outcome in (opened.compact(fence=fence), opened.compact(plan, fence=fence)):
                reason = skipped(outcome, f"compact() of {plan.bytes_needed} bytes with room for {room}").reason
                plainly = reason.replace(",", "")
                if str(plan.bytes_needed) not in plainly or str(room) not in plainly:
                    raise Mismatch(f"the reason {reason!r}", f"one with both numbers, {plan.bytes_needed} and {room}")
            same(opened.contents(), before)
            same(fence.entered, 0)
            opened.files.room = plan.bytes_needed * 2
            opened.finish("a compaction that had no room")

    def test_a_disk_that_refuses_any_step(self, tmp_path: Path) -> None:
        """`Failed(StorageError)` that says what has changed; the store goes on or can be opened again, nothing is lost.

        To do: let StorageError end the work as Failed; say changed="unknown" from the first change of a commit until
        its folder is synced, and only what was seen otherwise.
        """
        if not self.make_factory().has_owner:
            return
        with self.opened(tmp_path, fills=2, name="counting") as opened:
            opened.files.arm(None)
            done(opened.compact(), "compact()")
            steps = opened.files.since
        refused = 0
        for fault in (Fault.REFUSED, Fault.UNKNOWN_DONE):
            for number in self.some(steps, _MOST_REFUSALS):
                when = f"a disk that fails at change {number} of {steps} ({fault.value})"
                with self.opened(tmp_path, fills=2, name=f"store {fault.value} {number}") as opened:
                    refused += self._refuse(opened, fault, number, when)
        assert refused, f"the disk refused each of {steps} changes, and every compaction was Done all the same"

    def _refuse(self, opened: Opened, fault: Fault, number: int, when: str) -> bool:
        """Whether a compaction whose n-th change fails was given up; and nothing is lost."""
        before = opened.state()
        opened.files.arm(lambda change: fault if change == number else None)
        outcome: Any = opened.compact()
        opened.files.arm(None)
        if not isinstance(outcome, Done):
            failed(outcome, StorageError, when)
            # It may want to be opened again before it says anything more.
            if not isinstance(attempt(opened.state), CompactlibError):
                truthful(opened, outcome, before, when)
            opened.idle(when)
        if number % 2:
            finished = attempt(lambda: opened.finish(f"{when}, on the same object"))
            if finished is None:
                return isinstance(outcome, Failed)
        opened.store.close()
        opened.factory.release(opened.store)
        with self.reopened(opened) as again:
            if isinstance(outcome, Failed) and not number % 2:
                truthful(again, outcome, before, f"{when}, opened again")
            again.finish(f"{when}, opened again")
            again.store.audit()
        return isinstance(outcome, Failed)

    def test_killed_at_any_step_then_a_successor_then_a_power_failure(self, tmp_path: Path) -> None:
        """Whatever a killed compaction left, its successor builds on; what either acknowledged survives the power.

        To do: make durable what an opening finds (compactlib.files.sync_names) before anything is acknowledged on top.
        """
        factory = self.make_factory()
        if not factory.has_owner:
            return
        prepared: list[Any] = []

        def live(folder: Path, files: Files, acknowledged: list[Any]) -> Opened:
            checked = files if isinstance(files, CheckedFiles) else CheckedFiles(files)
            return Opened(factory.open(folder, files=checked), folder, checked, acknowledged, factory)

        def prepare(folder: Path) -> None:
            opened = live(folder, CheckedFiles(), [])
            with closing(opened):
                opened.fill(0)
            prepared[:] = opened.acknowledged

        def compact(folder: Path, files: RecordingFiles) -> None:
            opened = live(folder, files, [])
            try:
                opened.compact()
            except Crash:
                # Its locks go with it; what it would still write does not reach the disk.
                let_go(opened)
                raise
            opened.store.close()
            factory.release(opened.store)

        def write(folder: Path, files: RecordingFiles) -> None:
            opened = live(folder, files, [])
            with closing(opened):
                opened.fill(1)
                files.acknowledge(opened.acknowledged[-1])

        def look(folder: Path, acknowledged: Sequence[Any]) -> None:
            opened = live(folder, CheckedFiles(), [*prepared, *acknowledged])
            with closing(opened):
                opened.check("a kill, a successor and a power failure")
                opened.finish("a kill, a successor and a power failure")

        explore_kills(compact, write, look, prepare=prepare,
                      max_states=max(10, _MOST_STATES * self.effort_percent // 100))


def check_compaction(factory: CompactionFactory, folder: Path, *, effort_percent: int = 100) -> list[str]:
    """Run the whole suite without pytest; the names of the tests that were passed.

    Args:
        factory: opens and fills stores of one kind.
        folder: an empty folder that exists; each test gets a folder of its own inside.
        effort_percent: how many of the steps of a compaction to try, where each is tried; 100 takes some seconds.

    Raises:
        PromiseBroken: the store does not do what a test demands; the message says what, and what to do.
    """
    suite = CompactionConformance()
    suite.make_factory = lambda: factory  # type: ignore[method-assign]
    suite.effort_percent = effort_percent
    return run_kit(suite, folder)


def _raised(call: Any, name: str) -> str:
    try:
        answer = call(**{name: 42})
    except InvalidInput:
        return "InvalidInput"
    except Exception as error:  # the very thing that is looked for
        return f"{type(error).__name__}: {error}"
    return f"the answer {answer!r}"


def _held(gate: Gate) -> ExecutorBy:
    def run(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
        gate.hold()
        return soundly(tasks, budget, observer)

    return ExecutorBy(run)


def _answering(answer: object) -> Callable[..., object]:
    return lambda *_: answer


def _raising_at(number: int, error: BaseException) -> Callable[[int], None]:
    def call(found: int) -> None:
        if found == number:
            raise error

    return call


def _raised_by(call: Callable[[], object]) -> object:
    """What the call raises, or what it answers if it raises nothing."""
    try:
        return call()
    except BaseException as error:
        return error
