"""Hypothesis profiles: how hard to look, and never a deadline, because timed assertions have no place in tests."""

from __future__ import annotations

import os

from hypothesis import settings

# On CI the examples are the same in every run, so that a red build is about the change; elsewhere they differ.
settings.register_profile("everyday", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile("everyday")
