# SPDX-License-Identifier: Apache-2.0
"""The offers of the packages, each a pytest parameter named `package-Factory`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest

PACKAGES = ("raftlog", "raftlog_worker", "blobstore", "staging", "catalog", "scheduler")


def offered(what: str) -> Sequence[Any]:
    """The parameters of one kit."""
    found = []
    for package in PACKAGES:
        if importlib.util.find_spec(f"tests.promises.contract.{package}") is None:
            continue
        module = importlib.import_module(f"tests.promises.contract.{package}")
        found += [pytest.param(each, id=f"{package}-{_name(each)}") for each in getattr(module, what, ())]
    return found


def promises(kit: type) -> Sequence[str]:
    """The names of a kit's tests, the plainest first."""
    return list(dict.fromkeys(name for part in reversed(kit.__mro__) for name in vars(part)
                              if name.startswith("test_")))


def _name(offer: Any) -> str:
    return str(offer[0].name) if isinstance(offer, tuple) else type(offer).__name__
