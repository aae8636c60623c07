# SPDX-License-Identifier: Apache-2.0
"""The promises of every `Fence`, as a suite of `compactlib.testing.promises`."""

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
from compactlib.testing.promises import ConformanceKit, error_from, expect, same
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

    def committed(self, resource: str) -> Commitment | None:
        """Return the last commitment."""
        record = self.records.get(resource)
        return None if record is None else record.committed


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

    def test_any_steps_do_what_a_plain_fence_does(self, tmp_path: Path) -> None:
        """Three hundred random steps against a model. A token is admitted unless a higher token was, and commits one
        value; an admission returns the last commitment; a token below the floor is not admitted.

        To do: compare your steps with `PlainFence.step` of this module. Compare and raise the token in the step that
        writes, and check it again in the commit; an earlier check is too early. Store the committed value with its
        token, and keep it when a higher token is admitted. Keep one floor for all resources.
        """
        fence, plain, rng = self.make_fence(tmp_path), PlainFence(), random.Random(7)
        for _ in range(_STEPS):
            what = rng.choice(["admit", "admit", "commit", "commit", "commit", "floor"])
            resource, value = rng.choice("ab"), rng.choice([b"x", b"y"])
            token = max(plain.floor + rng.randrange(-2, 4), 0)
            case = (what, resource, token, value)
            try:
                found: object = (fence.admit(resource, token) if what == "admit" else
                                 fence.commit(resource, token, value) if what == "commit" else
                                 fence.raise_floor(token))
            except CompactlibError as error:
                found = type(error)
                if isinstance(error, FencedOff):
                    same((error.resource, error.token, error.highest > token), (resource, token, True), case=case)
            same(found, plain.step(what, resource, token, value), case=case)
            same({name: fence.committed(name) for name in "ab"}, {name: plain.committed(name) for name in "ab"},
                 case=f"committed, after {case}")

    def test_names_tokens_and_values_have_bounds(self, tmp_path: Path) -> None:
        """Names of 1000 bytes, tokens of 64 bits, values of 256 KiB; not one byte more.

        To do: use a column of 64 bits without sign, or text, and room for MAX_VALUE_BYTES.
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


def _elsewhere(call: Callable[..., object], *args: object) -> object:
    """Call `call` in another thread."""
    return in_threads(1, lambda _: call(*args))[0]
