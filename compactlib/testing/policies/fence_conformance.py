# SPDX-License-Identifier: Apache-2.0
"""What every `Fence` has to do, as tests that any implementation can inherit.

    from compactlib.testing.policies.fence_conformance import FenceConformance

    class TestMyFence(FenceConformance):
        def make_fence(self, folder: Path) -> Fence:
            return MyFence(folder)

pytest collects the inherited methods; without pytest, `check_fence` runs them one after the other. For a fence that can
guard a step, inherit `LockingFenceConformance`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactlib.errors import Busy, CompactlibError, InvalidInput
from compactlib.scheduler.errors import CommittedOtherwise, FencedOff
from compactlib.scheduler.fences.fence import (
    MAX_TOKEN,
    MAX_VALUE_BYTES,
    Admission,
    Commitment,
    Fence,
    LockingFence,
    TokenFence,
)
from compactlib.testing.kit.fresh import drawing
from compactlib.testing.promises import ConformanceKit, expect, run_kit, same

_STEPS = 300
_THREADS = 4


class PlainFence:
    """What a fence is, in a few lines: what others are compared with."""

    def __init__(self) -> None:
        self.records: dict[str, Admission] = {}
        self.floor: int = 0

    def step(self, what: str, resource: str, token: int, value: bytes) -> object:
        """What an admission, a commit or a rise of the floor gives: a value, or a class of error."""
        if what == "floor":
            self.floor = max(self.floor, token)
            old = [name for name, record in self.records.items() if record.token < self.floor]
            for name in old:
                del self.records[name]
            return len(old)
        found = self.records.get(resource)
        if token < self.floor or (found is not None and token < found.token):
            return FencedOff
        done = None if found is None else found.committed
        if what == "commit":
            if found is None or found.token != token:
                return InvalidInput
            if done is not None and done.token == token and done.value != value:
                return CommittedOtherwise
            done = Commitment(token, value)
        self.records[resource] = Admission(resource, token, done)
        return self.records[resource]


class FenceConformance(ConformanceKit):
    """Inherit in a test class, say how to make the fence, and pytest finds the rest."""

    def make_fence(self, folder: Path) -> Fence:
        """The fence to be tested, with nothing admitted; `folder` is its own, and may be used or not."""
        raise NotImplementedError("say which fence is to be tested")

    def test_tokens_ascend(self, tmp_path: Path) -> None:
        """A token is admitted unless a higher one was.

        To do: compare and raise the token in one step; equal tokens are admitted again, lower ones get
        FencedOff with the highest.
        """
        fence = self.make_fence(tmp_path)
        for token in (5, 5, 9):
            same(fence.admit("job", token), Admission("job", token, None))
        try:
            fence.admit("job", 8)
        except FencedOff as refused:
            same((refused.resource, refused.token, refused.highest), ("job", 8, 9))
        else:
            raise AssertionError("token 8 was admitted after 9")
        same(fence.admit("another job", 1).token, 1)
        fence.audit()

    def test_a_late_worker_cannot_commit(self, tmp_path: Path) -> None:
        """Once a higher token is admitted, a lower one changes nothing.

        To do: check the token again within the commit, in the same step that writes; an earlier check is too
        early.
        """
        fence = self.make_fence(tmp_path)
        fence.admit("job", 5)
        fence.admit("job", 9)
        with expect(FencedOff):
            fence.commit("job", 5, b"late")
        same(fence.committed("job"), None)
        fence.commit("job", 9, b"in time")
        same(fence.committed("job"), Commitment(9, b"in time"))

    def test_who_comes_later_sees_what_was_committed(self, tmp_path: Path) -> None:
        """An admission shows how far the resource has come.

        To do: keep the last commitment when a higher token is admitted, and give it with the admission.
        """
        fence = self.make_fence(tmp_path)
        fence.admit("job", 5)
        fence.commit("job", 5, b"files")
        same(fence.admit("job", 9), Admission("job", 9, Commitment(5, b"files")))
        with expect(FencedOff):
            fence.commit("job", 5, b"files")

    def test_a_commit_may_be_repeated_but_not_changed(self, tmp_path: Path) -> None:
        """A token commits one value.

        To do: keep the committed value beside its token, and compare: equal is done already, another is
        CommittedOtherwise.
        """
        fence = self.make_fence(tmp_path)
        fence.admit("job", 5)
        first = fence.commit("job", 5, b"files")
        same(fence.commit("job", 5, b"files"), first)
        with expect(CommittedOtherwise):
            fence.commit("job", 5, b"other files")
        same(fence.committed("job"), Commitment(5, b"files"))

    def test_a_commit_needs_an_admission(self, tmp_path: Path) -> None:
        """No caller commits without having seen what is there.

        To do: a commit with a token that was never admitted is InvalidInput: its worker has not seen what is
        there.
        """
        fence = self.make_fence(tmp_path)
        with expect(InvalidInput):
            fence.commit("job", 5, b"files")
        fence.admit("job", 4)
        with expect(InvalidInput):
            fence.commit("job", 5, b"files")

    def test_names_and_tokens_that_are_none(self, tmp_path: Path) -> None:
        """They are refused by name.

        To do: check names and tokens first, with the checks of compactlib.scheduler.fences.fence.
        """
        fence = self.make_fence(tmp_path)
        for resource, token in (("", 1), ("r" * 1001, 1), ("\ud800", 1), ("r", -1), ("r", MAX_TOKEN + 1)):
            with expect(InvalidInput):
                fence.admit(resource, token)
            with expect(InvalidInput):
                fence.commit(resource, token, b"")
        for token in (-1, MAX_TOKEN + 1):
            with expect(InvalidInput):
                fence.raise_floor(token)

    def test_what_is_no_name_no_token_and_no_value(self, tmp_path: Path) -> None:
        """A caller's mistake is reported as one, whatever its type.

        To do: look at the types before using them, and raise InvalidInput; nothing may change.
        """
        fence: Any = self.make_fence(tmp_path)
        fence.admit("job", 5)
        for name, token in ((7, 5), (None, 5), (b"job", 5), ("job", "5"), ("job", None), ("job", 5.5)):
            with expect(InvalidInput):
                fence.admit(name, token)
            with expect(InvalidInput):
                fence.commit(name, token, b"value")
        for value in ("text", None, 7):
            with expect(InvalidInput):
                fence.commit("job", 5, value)
        for name in (7, None):
            with expect(InvalidInput):
                fence.committed(name)
        for token in ("5", None):
            with expect(InvalidInput):
                fence.raise_floor(token)
        same(fence.admit("job", 5), Admission("job", 5, None))

    def test_the_largest_that_is_taken(self, tmp_path: Path) -> None:
        """Names of 1000 bytes, tokens of 64 bits, values of 256 KiB; not one byte more.

        To do: use a column of 64 bits without sign, or text, and room for MAX_VALUE_BYTES.
        """
        fence = self.make_fence(tmp_path)
        resource, value = "ü" * 500, b"v" * MAX_VALUE_BYTES
        fence.admit(resource, MAX_TOKEN)
        fence.commit(resource, MAX_TOKEN, value)
        same(fence.committed(resource), Commitment(MAX_TOKEN, value))
        with expect(InvalidInput):
            fence.commit(resource, MAX_TOKEN, value + b"v")

    def test_below_the_floor_nothing_is_admitted_and_nothing_kept(self, tmp_path: Path) -> None:
        """The floor holds for every resource, also for ones never seen.

        To do: keep one floor for all resources, and drop what lies below it when it rises.
        """
        fence = self.make_fence(tmp_path)
        for number in range(10):
            fence.admit(f"job {number}", number)
        fence.commit("job 9", 9, b"files")
        same(fence.raise_floor(7), 7)
        same(fence.raise_floor(3), 0)
        for resource in ("job 1", "job 9", "a new one"):
            with expect(FencedOff):
                fence.admit(resource, 6)
        with expect(FencedOff):
            fence.commit("job 1", 1, b"")
        same(fence.admit("job 1", 7), Admission("job 1", 7, None))
        same(fence.committed("job 9"), Commitment(9, b"files"))
        fence.audit()

    def test_any_steps_do_what_a_plain_fence_does(self, tmp_path: Path) -> None:
        """Three hundred random steps against a model.

        To do: compare your steps with PlainFence of this module, which does the same in twenty lines.
        """
        fence, plain, rng = self.make_fence(tmp_path), PlainFence(), drawing(7)
        for _ in range(_STEPS):
            what = rng.choice(["admit", "admit", "commit", "commit", "commit", "floor"])
            resource, value = rng.choice("ab"), rng.choice([b"x", b"y"])
            token = max(plain.floor + rng.randrange(-2, 4), 0)
            try:
                found: object = (fence.admit(resource, token) if what == "admit" else
                                 fence.commit(resource, token, value) if what == "commit" else
                                 fence.raise_floor(token))
            except CompactlibError as error:
                found = type(error)
            expected = plain.step(what, resource, token, value)
            assert found == expected, f"{what} {resource} {token} {value!r} gives {found}, not {expected}"
        fence.audit()

    def test_of_many_threads_the_highest_token_commits_last(self, tmp_path: Path) -> None:
        """Whatever they do at once, committed tokens ascend and the highest is never refused.

        To do: let the store decide (compare-and-set), or hold one lock over look and write; try again when
        another was first.
        """
        fence = self.make_fence(tmp_path)
        seen: list[list[object]] = [[] for _ in range(_THREADS)]

        def work(number: int) -> None:
            for step in range(10):
                token = step * _THREADS + number + 1
                try:
                    fence.admit("job", token)
                    seen[number].append(fence.commit("job", token, b"%d" % token))
                except CompactlibError as error:
                    seen[number].append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        last = 10 * _THREADS
        same(fence.committed("job"), Commitment(last, b"%d" % last))
        for answers in seen:
            tokens = [answer.token for answer in answers if isinstance(answer, Admission)]
            same(tokens, sorted(tokens))
            strange = [answer for answer in answers if not isinstance(answer, Admission | FencedOff)]
            assert not strange, strange


class LockingFenceConformance(FenceConformance):
    """The same, and what a fence that guards steps has to do."""

    def make_fence(self, folder: Path) -> LockingFence:
        """The fence to be tested; it waits for up to 30 seconds."""
        raise NotImplementedError("say which fence is to be tested")

    def make_impatient_fence(self, folder: Path) -> LockingFence:
        """The fence to be tested, that does not wait at all for guarded steps of others."""
        raise NotImplementedError("say which fence is to be tested, with no patience")

    def test_a_newer_token_waits_for_the_end_of_a_guarded_step(self, tmp_path: Path) -> None:
        """It comes before the step, which is then refused, or after it.

        To do: hold a lock of the resource while the guarded step runs; admissions of others wait for it or give
        Busy.
        """
        fence = self.make_impatient_fence(tmp_path)
        with fence.guard("log", 5) as admission:
            same(admission.token, 5)
            assert isinstance(_in_another_thread(lambda: fence.admit("log", 9)), Busy)
            fence.commit("log", 5, b"done within")
        same(_in_another_thread(lambda: fence.admit("log", 9)), Admission("log", 9, Commitment(5, b"done within")))
        ran = False
        with expect(FencedOff), fence.guard("log", 5):
            ran = True
        assert not ran, "a late worker's step has run"

    def test_the_commits_of_a_job_go_through_its_own_guard(self, tmp_path: Path) -> None:
        """`TokenFence` makes a `CommitFence` of it, which any store's `compact` takes.

        To do: `guard` may be entered again and again with the same token, one step after the other.
        """
        fence = self.make_impatient_fence(tmp_path)
        mine = TokenFence(fence, "log", 5)
        for _ in range(2):
            with mine.guard():
                assert isinstance(_in_another_thread(lambda: fence.admit("log", 9)), Busy)
        with TokenFence(fence, "log", 9).guard():
            pass
        ran = False
        with expect(FencedOff), mine.guard():
            ran = True
        assert not ran, "a late worker's commit has begun"

    def test_a_guarded_step_that_fails_lets_the_next_one_in(self, tmp_path: Path) -> None:
        """The lock ends with the step, however it ends.

        To do: release the lock in a `finally`.
        """
        fence = self.make_impatient_fence(tmp_path)

        def fail() -> None:
            with fence.guard("log", 5):
                raise ZeroDivisionError

        with expect(ZeroDivisionError):
            fail()
        assert isinstance(_in_another_thread(lambda: fence.admit("log", 9)), Admission)

    def test_a_guarded_step_cannot_let_a_newer_token_in_itself(self, tmp_path: Path) -> None:
        """Not even the step itself gets around its guard.

        To do: remember which thread holds the guard, and refuse its own newer admission with InvalidInput: it
        would wait for itself.
        """
        fence = self.make_impatient_fence(tmp_path)
        with fence.guard("log", 5):
            with expect(InvalidInput):
                fence.admit("log", 9)
            with fence.guard("log", 5), fence.guard("another", 9):
                pass
            with expect(InvalidInput):
                fence.admit("log", 9)

    def test_guarded_steps_of_one_resource_do_not_overlap_and_ascend(self, tmp_path: Path) -> None:
        """Four threads, one after the other.

        To do: one lock for each resource, and admit the token under it.
        """
        fence = self.make_fence(tmp_path)
        log: list[tuple[str, int]] = []

        def work(number: int) -> None:
            for step in range(5):
                token = step * _THREADS + number + 1
                try:
                    with fence.guard("log", token):
                        log.append(("begins", token))
                        log.append(("ends", token))
                except FencedOff:
                    pass

        threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        began, ended = log[::2], log[1::2]
        same([token for _, token in began], [token for _, token in ended], sorted(token for _, token in began))
        same({what for what, _ in began}, {"begins"})
        same({what for what, _ in ended}, {"ends"})


def check_fence(make_fence: Callable[[Path], Fence], folder: Path) -> list[str]:
    """Run the suite of a fence without pytest; the names of the tests that were passed.

    Args:
        make_fence: see `FenceConformance.make_fence`.
        folder: an empty folder that exists; each test gets a folder of its own inside.

    Raises:
        AssertionError: the fence does not do what a test demands; the message says what.
    """
    suite = FenceConformance()
    suite.make_fence = make_fence  # type: ignore[method-assign, assignment]
    return run_kit(suite, folder)


def _in_another_thread(call: Callable[[], object]) -> object:
    caught: list[object] = []

    def run() -> None:
        try:
            caught.append(call())
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0]
