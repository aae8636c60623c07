# SPDX-License-Identifier: Apache-2.0
"""The promises of every `Fence`, as tests that any implementation can inherit.

    from compactlib.testing import FenceConformance

    class TestMyFence(FenceConformance):
        def make_fence(self, folder: Path) -> Fence:
            return MyFence(folder)

pytest collects the inherited methods; without pytest, `check_fence` runs them one after the other. For a fence that can
guard a step, `make_impatient_fence` returns a fence that does not wait.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactlib.errors import Busy, CompactlibError, InvalidInput
from compactlib.fences import (
    MAX_TOKEN,
    MAX_VALUE_BYTES,
    Admission,
    Commitment,
    CommittedOtherwise,
    Fence,
    FencedOff,
    LockingFence,
)
from compactlib.testing.promises import ConformanceKit, error_from, expect, run_kit, same
from compactlib.testing.stand_ins import in_threads

_STEPS = 300
_THREADS = 4


class PlainFence:
    """A fence in a few lines: the model of the tests."""

    def __init__(self) -> None:
        self.records: dict[str, Admission] = {}
        self.floor: int = 0

    def step(self, what: str, resource: str, token: int, value: bytes) -> object:
        """Return the result of an admission, a commit or a rise of the floor: a value, or a class of error."""
        if what == "floor":
            self.floor = max(self.floor, token)
            kept = {name: record for name, record in self.records.items() if record.token >= self.floor}
            dropped, self.records = len(self.records) - len(kept), kept
            return dropped
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
    """Inherit in a test class and override `make_fence`; pytest finds the tests."""

    def make_fence(self, folder: Path) -> Fence:
        """Return the fence to be tested, without admissions; it may use `folder`.

        A fence that guards steps waits for the steps of others for up to 30 seconds.
        """
        raise NotImplementedError("override make_fence to return a Fence")

    def make_impatient_fence(self, folder: Path) -> LockingFence | None:
        """Return a fence of the same kind that guards steps and does not wait for the steps of others.

        `None` for a fence without `guard`, which skips its tests.
        """
        return None

    def test_tokens_ascend(self, tmp_path: Path) -> None:
        """A token is admitted unless a higher token was; each resource has its own tokens.

        To do: compare and raise the token in one step; equal tokens are admitted again, lower ones get FencedOff with
        the highest.
        """
        fence = self.make_fence(tmp_path)
        for token in (5, 5, 9):
            same(fence.admit("job", token), Admission("job", token, None))
        refused = error_from(FencedOff, fence.admit, "job", 8)
        same((refused.resource, refused.token, refused.highest), ("job", 8, 9))
        same(fence.admit("another job", 1).token, 1)

    def test_late_worker_cannot_commit(self, tmp_path: Path) -> None:
        """Once a higher token is admitted, a lower one changes nothing.

        To do: check the token again within the commit, in the same step that writes; an earlier check is too early.
        """
        fence = self.make_fence(tmp_path)
        fence.admit("job", 5)
        fence.admit("job", 9)
        with expect(FencedOff):
            fence.commit("job", 5, b"late")
        same(fence.committed("job"), None)
        fence.commit("job", 9, b"in time")
        same(fence.committed("job"), Commitment(9, b"in time"))

    def test_admission_shows_what_was_committed(self, tmp_path: Path) -> None:
        """An admission returns the last commitment of its resource.

        To do: keep the last commitment when a higher token is admitted, and return it with the admission.
        """
        fence = self.make_fence(tmp_path)
        fence.admit("job", 5)
        fence.commit("job", 5, b"files")
        same(fence.admit("job", 9), Admission("job", 9, Commitment(5, b"files")))

    def test_commit_may_be_repeated_but_not_changed(self, tmp_path: Path) -> None:
        """A token commits one value.

        To do: store the committed value with its token, and compare: an equal value is done already, another is
        CommittedOtherwise.
        """
        fence = self.make_fence(tmp_path)
        fence.admit("job", 5)
        first = fence.commit("job", 5, b"files")
        same(fence.commit("job", 5, b"files"), first)
        with expect(CommittedOtherwise):
            fence.commit("job", 5, b"other files")
        same(fence.committed("job"), Commitment(5, b"files"))

    def test_commit_needs_an_admission(self, tmp_path: Path) -> None:
        """A token that was never admitted cannot commit.

        To do: raise InvalidInput: the worker has not seen the last commitment, which an admission returns.
        """
        fence = self.make_fence(tmp_path)
        error_from(InvalidInput, fence.commit, "job", 5, b"files", case="nothing was admitted")
        fence.admit("job", 4)
        error_from(InvalidInput, fence.commit, "job", 5, b"files", case="a lower token was admitted")

    def test_names_tokens_and_values_have_bounds(self, tmp_path: Path) -> None:
        """Names of 1000 bytes, tokens of 64 bits, values of 256 KiB; not one byte more.

        To do: check names and tokens first, with the checks of compactlib.fences.fence. Use a column of 64
        bits without sign, or text, and room for MAX_VALUE_BYTES.
        """
        fence = self.make_fence(tmp_path)
        resource, value = "ü" * 500, b"v" * MAX_VALUE_BYTES
        fence.admit(resource, MAX_TOKEN)
        fence.commit(resource, MAX_TOKEN, value)
        for name, token in (("", 1), ("r" * 1001, 1), ("\ud800", 1), ("r", -1), ("r", MAX_TOKEN + 1)):
            error_from(InvalidInput, fence.admit, name, token, case=(name, token))
            error_from(InvalidInput, fence.commit, name, token, b"", case=(name, token))
        for token in (-1, MAX_TOKEN + 1):
            error_from(InvalidInput, fence.raise_floor, token, case=token)
        error_from(InvalidInput, fence.commit, resource, MAX_TOKEN, value + b"v", case="one byte too many")
        same(fence.committed(resource), Commitment(MAX_TOKEN, value))

    def test_floor_holds_for_every_resource(self, tmp_path: Path) -> None:
        """A token below the floor is not admitted, also for new resources, and its record is dropped.

        To do: keep one floor for all resources, and drop the records below it when it rises.
        """
        fence = self.make_fence(tmp_path)
        for number in range(10):
            fence.admit(f"job {number}", number)
        fence.commit("job 9", 9, b"files")
        same((fence.raise_floor(7), fence.raise_floor(3)), (7, 0))
        for resource in ("job 1", "job 9", "a new one"):
            error_from(FencedOff, fence.admit, resource, 6, case=resource)
        error_from(FencedOff, fence.commit, "job 1", 1, b"", case="a commit")
        same(fence.admit("job 1", 7), Admission("job 1", 7, None))
        same(fence.committed("job 9"), Commitment(9, b"files"))

    def test_any_steps_do_what_a_plain_fence_does(self, tmp_path: Path) -> None:
        """Three hundred random steps against a model.

        To do: compare your steps with PlainFence of this module, which does the same in twenty lines.
        """
        fence, plain, rng = self.make_fence(tmp_path), PlainFence(), random.Random(7)
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
            same(found, plain.step(what, resource, token, value), case=(what, resource, token, value))

    def test_highest_token_of_threads_commits_last(self, tmp_path: Path) -> None:
        """Tokens that threads commit concurrently ascend, and the highest is never refused.

        To do: let the store decide (compare-and-set), or hold one lock over read and write; retry when another was
        first.
        """
        fence = self.make_fence(tmp_path)

        def work(number: int) -> list[int]:
            tokens: list[int] = []
            for step in range(10):
                token = step * _THREADS + number + 1
                with contextlib.suppress(FencedOff):
                    fence.admit("job", token)
                    tokens.append(fence.commit("job", token, b"%d" % token).token)
            return tokens

        for tokens in in_threads(_THREADS, work):
            same(tokens, sorted(tokens))
        last = 10 * _THREADS
        same(fence.committed("job"), Commitment(last, b"%d" % last))

    # ---- fences that guard steps

    def test_newer_token_waits_for_a_guarded_step(self, tmp_path: Path) -> None:
        """It is admitted before the step, which is then refused, or after the step has ended, in success or failure.

        To do: hold a lock of the resource while the guarded step runs, and release it in a `finally`; admissions of
        others wait for it or get Busy.
        """
        if fence := self.make_impatient_fence(tmp_path):
            with fence.guard("log", 5) as admission:
                same(admission.token, 5)
                error_from(Busy, _elsewhere, fence.admit, "log", 9)
                fence.commit("log", 5, b"done within")
            with expect(ValueError), fence.guard("log", 5):
                int("a step that fails")
            same(_elsewhere(fence.admit, "log", 9), Admission("log", 9, Commitment(5, b"done within")))
            ran = False
            with expect(FencedOff), fence.guard("log", 5):
                ran = True
            assert not ran, "a late worker's step ran"

    def test_guarded_step_cannot_admit_a_newer_token(self, tmp_path: Path) -> None:
        """A step that admits a newer token than its guard's is refused.

        To do: remember which thread holds the guard, and refuse its own newer admission with InvalidInput: it would
        wait for itself.
        """
        if fence := self.make_impatient_fence(tmp_path):
            with fence.guard("log", 5):
                error_from(InvalidInput, fence.admit, "log", 9)
                with fence.guard("log", 5), fence.guard("another", 9):
                    pass
                error_from(InvalidInput, fence.admit, "log", 9, case="after a guard inside of the guard")

    def test_guarded_steps_of_threads_do_not_overlap(self, tmp_path: Path) -> None:
        """Steps of four threads run one after the other, by ascending tokens; the highest is never refused.

        To do: one lock for each resource, and admit the token under it.
        """
        if self.make_impatient_fence(tmp_path):
            fence: Any = self.make_fence(tmp_path)
            log: list[tuple[str, int]] = []

            def work(number: int) -> None:
                for step in range(5):
                    token = step * _THREADS + number + 1
                    with contextlib.suppress(FencedOff), fence.guard("log", token):
                        log.append(("begins", token))
                        log.append(("ends", token))

            in_threads(_THREADS, work)
            tokens = [token for _, token in log[::2]]
            same((tokens, tokens[-1:]), (sorted(tokens), [5 * _THREADS]))
            same(log, [(what, token) for token in tokens for what in ("begins", "ends")])


def check_fence(make_fence: Callable[[Path], Fence], folder: Path, *,
                make_impatient_fence: Callable[[Path], LockingFence] | None = None) -> list[str]:
    """Run the suite of a fence without pytest, and return the names of its tests.

    Args:
        make_fence: see `FenceConformance.make_fence`.
        folder: an empty folder that exists; each test gets a new folder inside.
        make_impatient_fence: see `FenceConformance.make_impatient_fence`.

    Raises:
        PromiseBroken: the fence fails a test.
    """
    suite: Any = FenceConformance()
    suite.make_fence = make_fence
    if make_impatient_fence is not None:
        suite.make_impatient_fence = make_impatient_fence
    return run_kit(suite, folder)


def _elsewhere(call: Callable[..., object], *args: object) -> object:
    """Call `call` in another thread."""
    return in_threads(1, lambda _: call(*args))[0]
