# SPDX-License-Identifier: Apache-2.0
"""A host's subclass of the local disk or of the system's clock is an ordinary class: it keeps its state on its way."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from compactlib.clock import SystemClock
from compactlib.files import LocalFiles


class NotedFiles(LocalFiles):
    """A disk with a state of its own, which sets only that."""

    def __init__(self, note: str) -> None:
        self.note = note


class SkewedClock(SystemClock):
    """A clock with a state of its own."""

    def __init__(self, skew: float) -> None:
        self.skew = skew

    def now(self) -> float:
        return super().now() + self.skew


@pytest.mark.parametrize("one", [NotedFiles("a"), SkewedClock(2.0)])
def test_a_subclass_travels_with_its_state_and_is_equal_by_it(one: NotedFiles | SkewedClock) -> None:
    for other in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert vars(other) == vars(one)
        assert other == one
        assert hash(other) == hash(one)
    assert one != type(one)("another")  # type: ignore[arg-type]
    assert one not in (LocalFiles(), SystemClock())


def test_a_subclass_that_sets_only_its_own_state_creates_files(tmp_path: Path) -> None:
    NotedFiles("a").create(tmp_path / "a").close()
    assert (tmp_path / "a").stat().st_mode & 0o400
