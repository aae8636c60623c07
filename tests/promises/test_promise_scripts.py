# SPDX-License-Identifier: Apache-2.0
"""Lives of chosen acts in which everything is tried that a hazard has: each write that lands late, each pause.

The hazards draw acts and histories. What takes three acts of certain kinds in a row they meet rarely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from compactlib.testing import Driver, Effort, Journal, World, check_hazards
from tests.promises.drivers.catalog import CatalogDriver
from tests.promises.drivers.drawn import ANY, LAST, Drawn
from tests.promises.drivers.repository import RepositoryDriver
from tests.promises.drivers.scheduler import KVSchedulerDriver


@attrs.frozen
class Script:
    """Acts of the first opening, each as its first choices.

    Attributes:
        driver: acts.
        acts: of the first opening.
        hazards: the failures.
        others: acts of later openings, an owner that takes over or a peer; the same if `None`.
    """

    driver: Driver[Any]
    acts: Sequence[tuple[Any, ...]]
    hazards: Sequence[str]
    others: Sequence[tuple[Any, ...]] | None = None


COMMITS = [("commit", "main"), ("commit", "main")]
SCRIPTS = {
    "catalog-pins": Script(CatalogDriver(), [
        (0.0, "execute"), (0.0, "pin"), (0.0, "pin"), (0.0, "move", ANY, "moved"), (0.0, "execute"),
        (0.0, "move", ANY, "moved"), (20.0, "forget")], ["lost_answers", "paused_owners"]),
    "catalog-watermark": Script(CatalogDriver(), [
        (0.0, "execute"), (20.0, "raise"), (20.0, "raise"), (20.0, "raise")], ["lost_answers", "paused_owners"]),
    "catalog-cuts": Script(CatalogDriver(), [(0.0, "execute"), (20.0, "cut", ANY, LAST), (20.0, "cut", ANY, LAST)],
                           ["paused_owners"]),
    "catalog-retaken": Script(CatalogDriver(), [
        (0.0, "execute"), (0.0, "pin", ANY, True, False), (20.0, "forget"), (0.0, "pin", ANY, True, True)],
        ["paused_owners"]),
    "scheduler-takeover": Script(KVSchedulerDriver(), [(0.0, "add"), (0.0, "add"), (0.0, "checkpoint"),
                                                           (0.0, "add")], ["paused_owners"]),
    "repository-commits": Script(RepositoryDriver("memory"), COMMITS[:1], ["paused_owners"]),
    "repository-collected": Script(RepositoryDriver("memory"), [("reclaim",), *COMMITS], ["paused_owners"],
                                   [("reclaim",)] * 3),
}


class Scripted(Driver[Any]):
    """A driver whose acts after each opening are those of a script; later acts are drawn."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._left = dict[int, list[tuple[Any, ...]]]()
        self.has_peers = script.driver.has_peers

    def settings(self) -> Sequence[Any]:
        return self._script.driver.settings()

    def check(self, store: Any, journal: Journal, *, damage: str) -> None:
        self._script.driver.check(store, journal, damage=damage)

    def open(self, world: World, settings: Any) -> Any:
        store = self._script.driver.open(world, settings)
        number = world.kept["scripted"] = world.kept.get("scripted", 0) + 1
        acts = self._script.acts if number == 1 or self._script.others is None else self._script.others
        self._left[id(store)] = list(acts)
        return store

    def act(self, store: Any, rng: Random, journal: Journal) -> None:
        left = self._left[id(store)]
        self._script.driver.act(store, Drawn(rng.getrandbits(60), left.pop(0) if left else ()), journal)

    def halves(self, what: Any) -> Iterable[tuple[Any, Any]]:
        return self._script.driver.halves(what)


@pytest.mark.parametrize(("name", "hazard"), [
    pytest.param(name, hazard, id=f"{name}-{hazard}") for name, script in SCRIPTS.items()
    for hazard in script.hazards])
def test_script_keeps_its_acknowledged_state(name: str, hazard: str, tmp_path: Path) -> None:
    """Every history of the hazard in which one thing goes wrong."""
    script = SCRIPTS[name]
    acts = max(len(script.acts), len(script.others or ()))
    histories = check_hazards(Scripted(script), tmp_path, hazards=[hazard], effort=Effort(acts, histories=None))
    assert histories[hazard] > 1
