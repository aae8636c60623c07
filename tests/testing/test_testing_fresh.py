# SPDX-License-Identifier: Apache-2.0
"""The checks raise no false alarm: the library's own implementations pass them, whatever examples are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.testing.histories.blob_histories import BlobHistory, CompactBlobs, Delete, Put, Wait
from compactlib.testing.kit.fresh import drawing, fresh_examples
from tests.testing.fresh_kits import KITS, run_rounds

# So many rounds take about half a minute; `make fresh` runs a thousand of each.
SOAK_ROUNDS = {"blob policies": 10, "raftlog policies": 20, "scheduler": 10, "sense": 100, "needs": 100,
               "kv memory": 20, "kv sqlite": 5, "kv machine": 100, "objects": 30, "fences": 30, "executors": 20,
               "range formats": 20, "staging": 20}
QUICK = ("sense", "needs", "kv machine", "staging")


@pytest.mark.parametrize("kit", QUICK)
def test_other_examples_than_always_pass(kit: str) -> None:
    assert list(run_rounds(kit, range(2))) == [0, 1]


@pytest.mark.soak
@pytest.mark.parametrize("kit", list(KITS))
def test_other_examples_than_always_pass_long(kit: str) -> None:
    assert len(list(run_rounds(kit, range(SOAK_ROUNDS[kit])))) == SOAK_ROUNDS[kit]


def test_the_same_number_draws_the_same_and_another_one_something_else() -> None:
    always = drawing(3).random()
    with fresh_examples(1):
        first = drawing(3).random()
        assert drawing(3).random() == first != always
        with fresh_examples(2):
            assert drawing(3).random() != first
        assert drawing(3).random() == first
    assert drawing(3).random() == always


def test_what_expires_while_a_compaction_runs_is_no_loss(tmp_path: Path) -> None:
    """A deleted blob whose time to live ends is lost to an undelete as well: the naps of a compaction are enough."""
    with BlobHistory(tmp_path / "expires") as store:
        for step in (Put(0, 250, 0.0, 5), Delete(0), CompactBlobs()):
            store.step(step)


def test_a_deletion_whose_retention_ends_while_a_compaction_runs_is_no_loss(tmp_path: Path) -> None:
    with BlobHistory(tmp_path / "retention") as store:
        for step in (Put(0, 250, None, 8), Delete(0), Wait(5.0), CompactBlobs(), CompactBlobs()):
            store.step(step)
