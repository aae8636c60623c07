# SPDX-License-Identifier: Apache-2.0
"""The effort of tests: Hypothesis profiles, never with a deadline, because timed assertions have no place in tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.harness.effort import Effort

# The examples are the same in every run, so that a red build is about the change. `make fresh` draws others, and more.
settings.register_profile("everyday", deadline=None, print_blob=True, derandomize=True, max_examples=25)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile("everyday")


@pytest.fixture(params=[pytest.param(False, id="little"), pytest.param(True, id="full", marks=pytest.mark.soak)])
def effort(request: pytest.FixtureRequest) -> Effort:
    """How much to do: see `Effort`."""
    return Effort(request.param)
