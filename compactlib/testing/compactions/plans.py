"""The part of the kit of `contract.Compaction` about views, plans and answers: what is said, and whether it holds."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

from compactlib.errors import Closed, CorruptData, InvalidInput, Stale
from compactlib.outcome import Done, Skipped
from compactlib.report import VerifyReport
from compactlib.testing.compactions.kit import CompactionPart, attempt, done, failed, skipped
from compactlib.testing.kit.conformance import Mismatch, expect, same, shown
from compactlib.testing.kit.contract_actors import PolicyBy, asserts_of

_TELLS = re.compile(r"\d|\w_\w|=")
_PLAIN = (bool, int, float, str, bytes, type(None))


class PlanPromises(CompactionPart):
    """What a plan says, and whether that is what is done."""

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
                    f"{name} is {shown(number)}; give bytes, or None where nobody can know")
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


def tells_why(why: Any) -> None:
    """A reason for doing nothing names a gate.

    Raises:
        Mismatch: it has no number in it, and no setting.
    """
    if not isinstance(why, str) or not _TELLS.search(why):
        raise Mismatch(shown(why), "a sentence with the value that shut the gate, and the setting to change")


def is_a_value(what: str, value: Any) -> None:
    """Frozen, picklable, printed in one line, and plain in `to_dicts()`.

    Raises:
        Mismatch: it is not.
    """
    if value is None:
        raise Mismatch(f"{what} answered None", "a value")
    line = repr(value)
    if "\n" in line or not line.strip():
        raise Mismatch(f"repr({what}) is {shown(line)}", "one line")
    again = pickle.loads(pickle.dumps(value))
    if again != value:
        raise Mismatch(f"{what} differs from what it is after pickling: {shown(again)}", shown(value))
    rows = value.to_dicts()
    if not isinstance(rows, list) or not all(isinstance(row, dict) and _is_plain(row) for row in rows):
        raise Mismatch(f"{what}.to_dicts() is {shown(rows)}", "a list of dictionaries of plain values")
    name = next((name for name in ("why", "is_busy") if hasattr(value, name)), "to_dicts")
    try:
        setattr(value, name, getattr(value, name))
    except AttributeError:
        return
    raise Mismatch(f"{what}.{name} can be set", "a frozen value")


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _raised(call: Any, name: str) -> str:
    try:
        answer = call(**{name: 42})
    except InvalidInput:
        return "InvalidInput"
    except Exception as error:  # the very thing that is looked for
        return f"{type(error).__name__}: {error}"
    return f"the answer {answer!r}"
