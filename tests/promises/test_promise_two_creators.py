# SPDX-License-Identifier: Apache-2.0
"""Two processes create one store at the same time: one of them owns it, and what that one acknowledges is there."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from compactlib.errors import CompactlibError
from compactlib.testing import Choices, Journal, Request, World, explore
from tests.promises.test_promise_hazards import DRIVERS


@pytest.mark.parametrize("name", ["segment_log", "raft_log_store", "local_log", "blob_store"])
@pytest.mark.parametrize("stays", [False, True], ids=["closed meanwhile", "open meanwhile"])
def test_store_is_made_by_two_processes_at_once(name: str, stays: bool, tmp_path: Path) -> None:
    driver: Any = DRIVERS[name]
    usual = driver.settings()[0]

    def history(choices: Choices) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        first, journal, has_come, opened = World(folder), Journal(), False, list[Any]()

        def come(use: contextlib.ExitStack) -> None:
            other = driver.open(World(folder), usual)
            opened.append(other)
            use.callback(other.close)
            for number in range(3):
                driver.act(other, Random(number), journal)

        def step(request: Request, act: Callable[[], Any]) -> Any:
            nonlocal has_come
            if not has_come and choices.pick(str(request), "goes on", "another process comes") != "goes on":
                has_come = True
                with contextlib.suppress(CompactlibError), ThreadPoolExecutor(1) as another:
                    another.submit(come, meanwhile).result()
                if not stays:
                    meanwhile.close()
            return act()

        with contextlib.ExitStack() as meanwhile:
            first.step = step
            with contextlib.suppress(CompactlibError):
                store = driver.open(first, usual)
                assert not stays or not opened, "two processes own one store"
                opened.append(store)
                store.close()
        assert opened, "neither has opened it"
        with contextlib.closing(driver.open(World(folder), usual)) as store:
            driver.check(store, journal, damage="")

    assert explore(history) > 3
