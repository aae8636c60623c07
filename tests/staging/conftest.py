# SPDX-License-Identifier: Apache-2.0
"""The fixture `backend`, for tests of the staging area that run on every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.kv import KVStore
from tests.harness.backends import BACKENDS
from tests.staging.world import World

MARKS = {"postgres": pytest.mark.cluster, "dynamodb": pytest.mark.soak}
KINDS = [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in BACKENDS]


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every world that a test makes stands on a store of this kind."""
    kind: str = request.param
    made: list[KVStore] = []

    def make() -> KVStore:
        made.append(BACKENDS[kind](tmp_path))
        return made[-1]

    monkeypatch.setattr(World, "make_store", staticmethod(make))
    yield kind
    for store in made:
        store.close()
