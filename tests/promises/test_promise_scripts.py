# SPDX-License-Identifier: Apache-2.0
"""Lives of chosen acts in which everything is tried that a hazard has: each write that lands late, each pause.

The hazards draw acts and histories. What takes three acts of certain kinds in a row they meet rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from compactlib.testing import Driver, Effort, Journal, World, check_hazards
from tests.promises.drivers.catalog import CatalogDriver
from tests.promises.drivers.drawn import ANY, LAST, Drawn
from tests.promises.drivers.scheduler import StoredSchedulerDriver

SCRIPTS: dict[str, tuple[Driver[Any], Sequence[tuple[Any, ...]], Sequence[str]]] = {
    "catalog-pins": (CatalogDriver(), [
        (0.0, "execute"), (0.0, "pin"), (0.0, "pin"), (0.0, "move", ANY, "moved"), (0.0, "execute"),
        (0.0, "move", ANY, "moved"), (20.0, "forget")], ["lost_answers", "paused_owners"]),
    "catalog-watermark": (CatalogDriver(), [(20.0, "raise"), (20.0, "raise"), (20.0, "raise")],
                          ["lost_answers"]),
    "catalog-cuts": (CatalogDriver(), [(0.0, "execute"), (20.0, "cut", ANY, LAST), (20.0, "cut", ANY, LAST)],
                     ["paused_owners"]),
    "catalog-retaken": (CatalogDriver(), [
        (0.0, "execute"), (0.0, "pin", ANY, True, False), (20.0, "forget"), (0.0, "pin", ANY, True, True)],
        ["paused_owners"]),
    "scheduler-takeover": (StoredSchedulerDriver(), [(0.0, "add"), (0.0, "add"), (0.0, "checkpoint"), (0.0, "add")],
                           ["paused_owners"]),
}


class Scripted:
    """A driver whose acts after each opening are those of a script; what comes behind its end is drawn.

    Args:
        driver: acts.
        script: of each act, what it draws first.
    """

    def __init__(self, driver: Driver[Any], script: Sequence[tuple[Any, ...]]) -> None:
        self._driver = driver
        self._script = script
        self._done = dict[int, int]()
        self.has_peers = getattr(driver, "has_peers", False)
        self.settings, self.check, self.policy = driver.settings, driver.check, driver.policy

    def open(self, world: World, settings: Any) -> Any:
        store = self._driver.open(world, settings)
        self._done[id(store)] = 0
        return store

    def act(self, store: Any, rng: Random, journal: Journal) -> None:
        done = self._done[id(store)]
        self._done[id(store)] += 1
        first = self._script[done] if done < len(self._script) else ()
        self._driver.act(store, Drawn(rng.getrandbits(60), first), journal)


@pytest.mark.parametrize(("name", "hazard"), [
    pytest.param(name, hazard, id=f"{name}-{hazard}") for name, (_, _, hazards) in SCRIPTS.items()
    for hazard in hazards])
def test_script_keeps_what_it_acknowledged(name: str, hazard: str, tmp_path: Path) -> None:
    """Every history of the hazard in which one thing goes wrong."""
    driver, script, _ = SCRIPTS[name]
    (outcome,) = check_hazards(Scripted(driver, script), tmp_path, hazards=[hazard],
                               effort=Effort(acts=len(script), histories=None))
    assert outcome.histories > 1
