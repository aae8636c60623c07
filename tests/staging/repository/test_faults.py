# SPDX-License-Identifier: Apache-2.0
"""Conflicts, throttling, failures, missing answers at every request: nothing is lost, and nothing half done."""

from __future__ import annotations

import pytest

from tests.harness.faulty_store import KVFault
from tests.staging.faulty_world import WORK, explore_faults


@pytest.mark.parametrize("name", WORK)
def test_a_fault_at_every_request(name: str) -> None:
    """Refused writes, throttled requests and failures, each at every request."""
    assert explore_faults(name, KVFault.CONFLICT, KVFault.SLOW_DOWN, KVFault.FAIL) >= 6


@pytest.mark.parametrize("name", WORK)
def test_an_answer_that_never_comes(name: str) -> None:
    assert explore_faults(name, KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE) >= 9
