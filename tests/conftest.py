"""Hypothesis profiles: how hard to look, and never a deadline, because timed assertions have no place in tests."""

from __future__ import annotations

from hypothesis import settings

# The examples are the same in every run, so that a red build is about the change. `make fresh` draws others.
settings.register_profile("everyday", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile("everyday")
