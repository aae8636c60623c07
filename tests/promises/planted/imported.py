# SPDX-License-Identifier: Apache-2.0
"""A plugin for pytest: the library must be imported from the folder that `PLANTED` names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import compactlib


def pytest_configure() -> None:
    """End pytest if another copy of the library was imported."""
    found, wanted = Path(compactlib.__file__).parent.parent, Path(os.environ["PLANTED"])
    if found.resolve() != wanted.resolve():
        raise pytest.UsageError(f"compactlib was imported from {found}, and the mistake is in {wanted}")
