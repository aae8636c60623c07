# SPDX-License-Identifier: Apache-2.0
"""The language of `promises/scenarios/catalog/compaction_*.txt`: three nodes, what happens to them, what is decided.

One command a line; what follows `#` is for the reader. The story begins with version 1: a schema, and a zone of 25
partitions on nodes A, B and C. Versions are a second apart, the low watermarks 600.5 seconds behind.

| command | what it does |
| --- | --- |
| `margin 1` | first line only: versions more to keep than anybody needs |
| `table 1`, `drop table 1` | a version; every node hosts the table's partitions until it forgets them |
| `index I on table 1`, `build I`, `available I` | a version each |
| `versions 3` | that many versions of no importance |
| `begin tx on B`, `end tx` | a read-write transaction |
| `pin backup at 3 for 60 seconds`, `release backup` | |
| `forget partition 11 of table 1 on B`, `host partition 11 of table 1 on B` | the node no longer reports it, or again |
| `leave C`, `join C` | the membership changes; the assignments do not |
| `restart B` | the node begins anew with what it had kept |
| `wait 61 seconds`, `settle` | time passes; and then low watermarks and published times reach the present |
| `round` | a round, coordinated by A; a decision that is safe is carried out |
| `expect compact to 6`, `expect hold by index build`, `expect nothing to do` | what the last round decided |
| `expect limit pin allows 3`, `expect culprit node B` | one of its limits; a culprit of any of them |
| `expect versions 6 to 9` | what every node retains |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs

from compactlib.catalog import (
    CatalogPlan,
    CreateIndex,
    CreateSchema,
    DropTable,
    MakeIndexAvailable,
    StartBuildingIndex,
    Topology,
)
from tests.harness.catalog_cluster import Cluster
from tests.harness.catalog_logs import sound


class Story:
    """Plays one story; an assertion that fails names its line."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.tables: dict[str, int] = {}
        self.transactions: dict[str, tuple[str, Any]] = {}
        self.decision: CatalogPlan | None = None
        self.made = 0

    def run(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), 1):
            command = line.partition("#")[0].strip()
            if command:
                try:
                    self._play(command)
                except BaseException as error:
                    error.add_note(f"in line {number}: {command}")
                    raise

    def _play(self, command: str) -> None:
        for pattern, play in _COMMANDS:
            match = re.fullmatch(pattern, command)
            if match:
                play(self, *match.groups())
                sound(self.cluster.service)
                return
        raise AssertionError(f"no such command: {command}")

    def margin(self, versions: str) -> None:
        self.cluster = Cluster(margin=int(versions))

    def table(self, number: str) -> None:
        self.tables[number] = self.cluster.add_table(int(number)).id

    def drop(self, number: str) -> None:
        self._version(DropTable(schema="PUBLIC", name=f"T{number}"))

    def index(self, name: str, number: str) -> None:
        self._version(CreateIndex(schema="PUBLIC", table=f"T{number}", name=name, columns=("ID",)))

    def build(self, name: str) -> None:
        self._version(StartBuildingIndex(self._index(name)))

    def available(self, name: str) -> None:
        self._version(MakeIndexAvailable(self._index(name)))

    def _index(self, name: str) -> int:
        found = self.cluster.service.catalog(self.cluster.service.history.latest).find_index("PUBLIC", name)
        assert found is not None, f"there is no index {name}"
        return found.id

    def _version(self, command: Any) -> None:
        self.cluster.service.execute([command], wait=False)
        self.cluster.wall.advance(1.0)

    def versions(self, count: str) -> None:
        for _ in range(int(count)):
            self.made += 1
            self._version(CreateSchema(f"S{self.made}"))

    def begin(self, name: str, node: str) -> None:
        self.cluster.nodes[node].service.poll()
        self.transactions[name] = node, self.cluster.nodes[node].transactions.begin()

    def end(self, name: str) -> None:
        node, transaction = self.transactions.pop(name)
        self.cluster.nodes[node].transactions.end(transaction)

    def pin(self, owner: str, version: str, seconds: str) -> None:
        node = self.cluster.nodes["A"]
        node.pins.pin(owner, int(version), node.service.history, ttl_seconds=float(seconds))

    def release(self, owner: str) -> None:
        self.cluster.nodes["A"].pins.release(owner)

    def forget(self, partition: str, table: str, node: str) -> None:
        self.cluster.nodes[node].published.remove(self.tables[table], int(partition), 1)

    def host(self, partition: str, table: str, node: str) -> None:
        self.cluster.nodes[node].published.register(self.tables[table], int(partition), incarnation=1, created_at=1)
        self.cluster.nodes[node].published.publish(self.tables[table], int(partition), 1,
                                                   self.cluster.service.clock.now())

    def leave(self, node: str) -> None:
        self._members({one.name for one in self.cluster.topology.nodes} - {node})

    def join(self, node: str) -> None:
        self._members({one.name for one in self.cluster.topology.nodes} | {node})

    def _members(self, names: set[str]) -> None:
        self.cluster.topology = attrs.evolve(Topology.of(*names), epoch=self.cluster.topology.epoch + 1)

    def restart(self, node: str) -> None:
        self.cluster.restart(node)

    def wait(self, seconds: str) -> None:
        self.cluster.wall.advance(float(seconds))

    def settle(self) -> None:
        self.cluster.settle()

    def round(self) -> None:
        self.decision = self.cluster.round()

    def expect_compact(self, target: str) -> None:
        assert self.decision is not None
        assert self.decision.target == int(target), self._told()

    def expect_hold(self, factor: str) -> None:
        assert self.decision is not None
        assert self.decision.is_empty, self._told()
        assert self.decision.explanation.factors[0] == factor, self._told()

    def expect_nothing(self) -> None:
        assert self.decision is not None
        assert self.decision.is_empty, self._told()
        assert not self.decision.explanation.limits, self._told()

    def expect_limit(self, factor: str, version: str) -> None:
        assert self.decision is not None
        found = [limit.allows for limit in self.decision.explanation.limits if limit.factor == factor]
        assert found == [None if version == "nothing" else int(version)], self._told()

    def expect_culprit(self, text: str) -> None:
        assert self.decision is not None
        culprits = [str(culprit) for limit in self.decision.explanation.limits for culprit in limit.culprits]
        assert any(text in culprit for culprit in culprits), self._told()

    def expect_versions(self, earliest: str, latest: str) -> None:
        for node in self.cluster.nodes.values():
            node.service.poll()
            assert (node.service.history.earliest, node.service.history.latest) == (int(earliest), int(latest))

    def _told(self) -> str:
        return "no round was made" if self.decision is None else self.decision.explain()


_COMMANDS: list[tuple[str, Callable[..., None]]] = [
    (r"margin (\d+)", Story.margin),
    (r"table (\d+)", Story.table),
    (r"drop table (\d+)", Story.drop),
    (r"index (\w+) on table (\d+)", Story.index),
    (r"build (\w+)", Story.build),
    (r"available (\w+)", Story.available),
    (r"versions (\d+)", Story.versions),
    (r"begin (\w+) on (\w+)", Story.begin),
    (r"end (\w+)", Story.end),
    (r"pin (\w+) at (\d+) for (\d+) seconds", Story.pin),
    (r"release (\w+)", Story.release),
    (r"forget partition (\d+) of table (\d+) on (\w+)", Story.forget),
    (r"host partition (\d+) of table (\d+) on (\w+)", Story.host),
    (r"leave (\w+)", Story.leave),
    (r"join (\w+)", Story.join),
    (r"restart (\w+)", Story.restart),
    (r"wait (\d+) seconds", Story.wait),
    (r"settle", Story.settle),
    (r"round", Story.round),
    (r"expect compact to (\d+)", Story.expect_compact),
    (r"expect hold by (.+)", Story.expect_hold),
    (r"expect nothing to do", Story.expect_nothing),
    (r"expect limit (.+) allows (\d+|nothing)", Story.expect_limit),
    (r"expect culprit (.+)", Story.expect_culprit),
    (r"expect versions (\d+) to (\d+)", Story.expect_versions),
]
