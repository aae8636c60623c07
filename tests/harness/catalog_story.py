# SPDX-License-Identifier: Apache-2.0
"""The language of `promises/scenarios/catalog/*.txt`: nodes, events, and the decisions of rounds.

One command a line; `#` begins a comment. The story begins with version 1: a schema, and a zone of 25
partitions on nodes A, B and C. Versions are a second apart, the low watermarks 600.5 seconds behind.

| command | what it does |
| --- | --- |
| `margin 1` | first line only: versions to keep beyond the needed versions |
| `table 1`, `drop table 1` | a version; every node hosts the table's partitions until it forgets them |
| `index I on table 1`, `build I`, `available I` | a version each |
| `versions 3` | three further versions |
| `begin tx on B`, `end tx` | a read-write transaction |
| `pin backup at 3 for 60 seconds`, `release backup` | |
| `forget partition 11 of table 1 on B`, `host partition 11 of table 1 on B` | the node no longer reports it, or again |
| `leave C`, `join C` | the membership changes; the assignments do not |
| `restart B` | the node begins a new life with its stored state |
| `wait 61 seconds`, `settle` | time passes; and then low watermarks and published times reach the present |
| `round` | a round, coordinated by A in term 1; a decision that is safe is carried out |
| `round by B in term 2` | by another coordinator |
| `expect compact to 6`, `expect hold by index build`, `expect nothing to do` | the decision of the last round |
| `expect limit pin allows 3`, `expect culprit node B` | one of its limits; a culprit of any of them |
| `expect versions 6 to 9` | the retained versions of every node |

Failures in a round:

| command | what it does |
| --- | --- |
| `lose report to B`, `lose publish to B` | from now on the host's call to the node raises |
| `silence report of B` | from now on the node does not answer that call, until the deadline |
| `reach B` | the node answers again |
| `calls twice` | from now on every node gets each call twice |
| `zone Z fails` | the zone cannot publish on any node |
| `at report restart B`, `at assignments fail` | a command that is carried out at the next call of that kind |
| `at publish die` | the coordinator's round ends at that call |
| `expect missing B`, `expect nobody missing` | which nodes did not report |
| `expect cut to 6`, `expect nothing cut` | the cut |
| `expect published`, `expect nothing published` | whether a time was published |
| `expect compaction fails CatalogMoved`, `expect replicas update fails Stale` | the error of a process of the round |
| `expect zone Z fails` | the zone is named |
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from compactlib.catalog import (
    CatalogPlan,
    DropObject,
    Index,
    IndexStatus,
    NodeId,
    NodeReport,
    PutObject,
    RoundReport,
    Schema,
    SetIndexStatus,
    Timestamp,
)
from compactlib.testing import Killed
from tests.harness.catalog_cluster import Cluster
from tests.harness.catalog_logs import sound

DEADLINE = 2.0


class Lossy(Cluster):
    """Some calls of the host raise."""

    def __init__(self, *, margin: int = 0) -> None:
        self.lost: set[tuple[str, str]] = set()
        super().__init__(margin=margin)

    async def report(self, node: NodeId) -> NodeReport:
        if (node.name, "report") in self.lost:
            raise ConnectionError("no route")
        return await super().report(node)

    async def publish(self, node: NodeId, time: Timestamp) -> None:
        if (node.name, "publish") in self.lost:
            raise ConnectionError("no route")
        await super().publish(node, time)


class Story:
    """Plays one story; a failed assertion has its line."""

    def __init__(self) -> None:
        self.cluster = Lossy()
        self.tables: dict[str, int] = {}
        self.transactions: dict[str, tuple[str, Any]] = {}
        self.report: RoundReport | None = None
        self.failures: Mapping[str, Exception] = {}
        self.made = 0

    def run(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), 1):
            command = line.partition("#")[0].strip()
            if command:
                try:
                    self._play(command)
                    sound(self.cluster.service)
                except BaseException as error:
                    error.add_note(f"in line {number}: {command}")
                    raise

    def _play(self, command: str) -> None:
        for pattern, play in _COMMANDS:
            match = re.fullmatch(pattern, command)
            if match:
                play(self, *match.groups())
                return
        raise AssertionError(f"no such command: {command}")

    def margin(self, versions: str) -> None:
        self.cluster = Lossy(margin=int(versions))

    def table(self, number: str) -> None:
        self.tables[number] = self.cluster.add_table(int(number)).id

    def drop(self, number: str) -> None:
        self._version(DropObject("table", f"T{number}", schema="PUBLIC"))

    def index(self, name: str, number: str) -> None:
        self._version(PutObject(Index(name), schema="PUBLIC", table=f"T{number}"))

    def build(self, name: str) -> None:
        self._version(SetIndexStatus(name, IndexStatus.BUILDING, schema="PUBLIC"))

    def available(self, name: str) -> None:
        self._version(SetIndexStatus(name, IndexStatus.AVAILABLE, schema="PUBLIC"))

    def _version(self, command: Any) -> None:
        self.cluster.service.execute([command], wait=False)
        self.cluster.wall.advance(1.0)

    def versions(self, count: str) -> None:
        for _ in range(int(count)):
            self.made += 1
            self._version(PutObject(Schema(f"S{self.made}")))

    def begin(self, name: str, node: str) -> None:
        self.cluster.nodes[node].service.poll()
        self.transactions[name] = node, self.cluster.nodes[node].transactions.begin()

    def end(self, name: str) -> None:
        node, transaction = self.transactions.pop(name)
        self.cluster.nodes[node].transactions.end(transaction)

    def pin(self, owner: str, version: str, seconds: str) -> None:
        service = self.cluster.service
        service.pins.pin(owner, int(version), service.history, ttl_seconds=float(seconds))

    def release(self, owner: str) -> None:
        self.cluster.service.pins.release(owner)

    def forget(self, partition: str, table: str, node: str) -> None:
        self.cluster.nodes[node].published.remove(self.tables[table], int(partition), 1)

    def host(self, partition: str, table: str, node: str) -> None:
        published = self.cluster.nodes[node].published
        published.register(self.tables[table], int(partition), incarnation=1,
                           created_at=self.cluster.service.history.activation(self.cluster.service.history.earliest))
        published.publish(self.tables[table], int(partition), 1, self.cluster.service.clock.now())

    def leave(self, node: str) -> None:
        self.cluster.nodes["A" if node != "A" else "B"].leave(node)

    def join(self, node: str) -> None:
        if node in self.cluster.nodes:
            self.cluster.nodes[node].join()
        else:
            self.cluster.start(node)

    def restart(self, node: str) -> None:
        self.cluster.restart(node)

    def wait(self, seconds: str) -> None:
        self.cluster.wall.advance(float(seconds))

    def settle(self) -> None:
        self.cluster.settle()

    # -- rounds

    def round(self, coordinator: str = "A", term: str = "1") -> None:
        self.report, self.failures = None, {}
        with contextlib.suppress(Killed):
            self.report, self.failures = self.cluster.round(coordinator, term=int(term))

    def lose(self, call: str, node: str) -> None:
        self.cluster.lost.add((node, call))

    def silence(self, call: str, node: str) -> None:
        self.cluster.silent.add((node, call))
        self.cluster.seconds = DEADLINE

    def reach(self, node: str) -> None:
        self.cluster.lost = {each for each in self.cluster.lost if each[0] != node}
        self.cluster.silent = {each for each in self.cluster.silent if each[0] != node}

    def calls_twice(self) -> None:
        self.cluster.calls = 2

    def zone_fails(self, name: str) -> None:
        self.cluster.failing_zones.add(self._zone(name))

    def _zone(self, name: str) -> int:
        zone = self.cluster.service.catalog(self.cluster.service.history.latest).find("zone", name)
        assert zone is not None
        return int(zone.id)

    def at(self, call: str, command: str) -> None:
        def happens() -> None:
            if command == "die":
                raise Killed
            if command == "fail":
                raise ValueError(f"the host's {call} failed")
            self._play(command)

        self.cluster.on[call] = happens

    # -- expectations

    @property
    def decision(self) -> CatalogPlan:
        assert self.report is not None, "no round has ended"
        assert self.report.plan is not None, self.failures
        return self.report.plan

    def expect_compact(self, target: str) -> None:
        assert self.decision.target == int(target), self.decision.explain()

    def expect_hold(self, factor: str) -> None:
        assert self.decision.is_empty, self.decision.explain()
        assert self.decision.explanation.factors[0] == factor, self.decision.explain()

    def expect_nothing(self) -> None:
        assert self.decision.is_empty, self.decision.explain()
        assert not self.decision.explanation.limits, self.decision.explain()

    def expect_limit(self, factor: str, version: str) -> None:
        found = [limit.allows for limit in self.decision.explanation.limits if limit.factor == factor]
        assert found == [None if version == "nothing" else int(version)], self.decision.explain()

    def expect_culprit(self, text: str) -> None:
        culprits = [str(culprit) for limit in self.decision.explanation.limits for culprit in limit.culprits]
        assert any(text in culprit for culprit in culprits), self.decision.explain()

    def expect_versions(self, earliest: str, latest: str) -> None:
        for node in self.cluster.nodes.values():
            node.service.poll()
            assert (node.service.history.earliest, node.service.history.latest) == (int(earliest), int(latest))

    def expect_missing(self, node: str) -> None:
        assert self.report is not None
        assert set(self.report.missing) == {node}, self.report
        assert f"node {node}" in self.report.why
        assert self.report.is_partial

    def expect_nobody_missing(self) -> None:
        assert self.report is not None
        assert not self.report.missing, self.report

    def expect_cut(self, version: str) -> None:
        assert self.report is not None
        assert self.report.cut is not None, (self.report, self.failures)
        assert self.report.cut.earliest == int(version)

    def expect_nothing_cut(self) -> None:
        assert self.report is None or self.report.cut is None, self.report

    def expect_published(self) -> None:
        assert self.report is not None
        assert self.report.time is not None, (self.report, self.failures)
        assert set(self.report.published) | self.report.unpublished.keys() == {
            node.name for node in self.report.topology.nodes}

    def expect_nothing_published(self) -> None:
        assert self.report is not None
        assert self.report.time is None, self.report

    def expect_failure(self, process: str, kind: str) -> None:
        assert process in self.failures, (self.report, self.failures)
        assert type(self.failures[process]).__name__ == kind, self.failures

    def expect_zone_fails(self, name: str) -> None:
        assert self.report is not None
        failed = re.findall(r"zone (\d+):", " ".join(self.report.unpublished.values()))
        assert set(failed) == {str(self._zone(name))}, self.report
        assert self.report.is_partial


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
    (r"round by (\w+) in term (\d+)", Story.round),
    (r"lose (report|publish) to (\w+)", Story.lose),
    (r"silence (report|publish) of (\w+)", Story.silence),
    (r"reach (\w+)", Story.reach),
    (r"calls twice", Story.calls_twice),
    (r"zone (\w+) fails", Story.zone_fails),
    (r"at (report|publish|assignments) (.+)", Story.at),
    (r"expect compact to (\d+)", Story.expect_compact),
    (r"expect hold by (.+)", Story.expect_hold),
    (r"expect nothing to do", Story.expect_nothing),
    (r"expect limit (.+) allows (\d+|nothing)", Story.expect_limit),
    (r"expect culprit (.+)", Story.expect_culprit),
    (r"expect versions (\d+) to (\d+)", Story.expect_versions),
    (r"expect missing (\w+)", Story.expect_missing),
    (r"expect nobody missing", Story.expect_nobody_missing),
    (r"expect cut to (\d+)", Story.expect_cut),
    (r"expect nothing cut", Story.expect_nothing_cut),
    (r"expect published", Story.expect_published),
    (r"expect nothing published", Story.expect_nothing_published),
    (r"expect (compaction|replicas update) fails (\w+)", Story.expect_failure),
    (r"expect zone (\w+) fails", Story.expect_zone_fails),
]
