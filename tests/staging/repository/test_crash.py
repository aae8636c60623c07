# SPDX-License-Identifier: Apache-2.0
"""A crash at every request to either store: everything reads right, the next run succeeds, nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from compactlib.staging.compaction.commit import Compactor
from compactlib.staging.compaction.reclaim.cleanup import TokenCleaner
from tests.harness.faulty_store import KVFault
from tests.staging.faulty_world import WORK, explore_faults


@pytest.mark.parametrize("name", WORK)
def test_a_crash_at_every_request(name: str) -> None:
    """All reads are as before or after, the next run succeeds, and after a sweep no orphan is left."""
    assert explore_faults(name, KVFault.CRASH_BEFORE, KVFault.CRASH_AFTER) >= 6


def test_a_cleanup_that_forgets_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test can fail: a token that leaves the register before its entries do is lost in a crash in between."""
    right_order = TokenCleaner._clean  # noqa: SLF001

    def forgets_first(cleaner: Any, mark: Any, *others: Any) -> Any:
        cleaner._context.tokens.forget([mark.token])  # noqa: SLF001
        return right_order(cleaner, mark, *others)

    monkeypatch.setattr(TokenCleaner, "_clean", forgets_first)
    with pytest.raises(AssertionError, match="entries of dropped tokens are left"):
        explore_faults("cleanup", KVFault.CRASH_AFTER)


def test_a_compaction_that_drops_its_tokens_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test can fail: tokens marked before the swap are still in use if the process dies in between."""
    right_order = Compactor._swap  # noqa: SLF001

    def marks_first(compactor: Any, branch: str, sealed: Any, result: Any) -> Any:
        compactor._context.tokens.mark_dropped(dict.fromkeys(sealed.sealed_tokens, branch))  # noqa: SLF001
        return right_order(compactor, branch, sealed, result)

    monkeypatch.setattr(Compactor, "_swap", marks_first)
    with pytest.raises(AssertionError, match="marked, but in use"):
        explore_faults("compact", KVFault.CRASH_BEFORE)
