# SPDX-License-Identifier: Apache-2.0
"""The actions of `docs/tla/CatalogCompaction.tla` in Python, to check what a simulated cluster did against them.

Each action has the guards of the specification, under the same name; a step whose guard does not hold, or after which
`Safe` does not, is refused. `to_tla` writes traces as a module with which TLC does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

from tests.catalog.simulation.run import CatalogSimulation

Step: TypeAlias = tuple[Any, ...]
Copy: TypeAlias = int
"""A replica of the specification: it keeps its number when it moves."""
_NEVER = 1_000_000
"""`Since` of a partition that never has a table."""


class TraceRefused(AssertionError):
    """A step of a trace is none of the specification's."""


@attrs.define
class _Round:
    epoch: int
    asked: frozenset[str]
    answers: dict[str, tuple[int, int, frozenset[Copy]]] = attrs.field(factory=dict)
    confirmed: bool = False

    @property
    def complete(self) -> bool:
        return bool(self.asked) and self.asked <= self.answers.keys()


class CatalogSpecification:
    """The state of the specification; each method is one of its actions.

    Args:
        nodes: their names.
        owners: by replica, the node that hosts it at first.
        partition_of: by replica, its partition.
        since: by partition, the first version that has a table in it.
        first: the newest version at first.
    """

    def __init__(self, nodes: Sequence[str], owners: Sequence[str], partition_of: Sequence[int], since: Sequence[int],
                 first: int) -> None:
        self.latest: int = first
        self.earliest: int = 0
        self.epoch: int = 0
        self.clock: dict[str, int] = dict.fromkeys(nodes, 0)
        self.lwm: dict[str, int] = dict.fromkeys(nodes, 0)
        self.uses: dict[str, set[int]] = {node: set() for node in nodes}
        self.log: list[list[tuple[str, int]]] = [[] for _ in since]
        self.flushed: list[int] = [0] * len(owners)
        self.published: list[int] = [first] * len(owners)
        self.owner: list[str] = list(owners)
        self.members: set[str] = set()
        self.rounds: dict[str, _Round] = {}
        self._partition_of = partition_of
        self._since = since

    def take(self, step: Step) -> None:
        """Carry out one step and check that the result is safe.

        Raises:
            TraceRefused: it is no step of the specification, or leads to a state that is not safe.
        """
        action, arguments = step[0], step[1:]
        if not getattr(self, f"_{action}")(*arguments):
            raise TraceRefused(f"{step} is not possible: {self!r}")
        unsafe = self._unsafe()
        if unsafe:
            raise TraceRefused(f"after {step} {unsafe}: {self!r}")

    def _unsafe(self) -> str:
        for node, versions in self.uses.items():
            if any(version < self.earliest for version in versions):
                return f"a transaction of {node} uses one of {versions}, below {self.earliest}"
        for copy, flushed in enumerate(self.flushed):
            for kind, version in self.log[self._partition_of[copy]][flushed:]:
                if kind == "write" and version < self.earliest:
                    return f"replica {copy} must replay {version}, below {self.earliest}"
        return ""

    def _owned(self, node: str) -> frozenset[Copy]:
        return frozenset(copy for copy, owner in enumerate(self.owner) if owner == node)

    # ---- the world

    def _NewVersion(self) -> bool:  # noqa: N802 - the specification's names
        self.latest += 1
        return True

    def _Join(self, node: str) -> bool:  # noqa: N802
        possible = node not in self.members
        self.members.add(node)
        self.epoch += 1
        self.clock[node] = max(self.clock.values())
        return possible

    def _Crash(self, node: str) -> bool:  # noqa: N802
        possible = node in self.members
        self.members.discard(node)
        self.epoch += 1
        self.uses[node] = set()
        return possible

    def _Begin(self, node: str, version: int) -> bool:  # noqa: N802
        possible = node in self.members and self.clock[node] <= version <= self.latest
        self.clock[node] = version
        self.uses[node].add(version)
        return possible

    def _End(self, node: str, version: int) -> bool:  # noqa: N802
        possible = version in self.uses[node]
        self.uses[node].discard(version)
        return possible

    def _Write(self, partition: int, version: int) -> bool:  # noqa: N802
        self.log[partition].append(("write", version))
        return version >= self._since[partition] and any(version in used for used in self.uses.values())

    def _MoveWatermark(self, node: str, version: int) -> bool:  # noqa: N802
        possible = node in self.members and self.lwm[node] <= version <= self.latest
        self.lwm[node] = version
        self.clock = {one: max(time, version) for one, time in self.clock.items()}
        return possible

    def _Flush(self, copy: Copy, upto: int) -> bool:  # noqa: N802
        log = self.log[self._partition_of[copy]]
        possible = self.owner[copy] in self.members and self.flushed[copy] <= upto <= len(log)
        times = [version for kind, version in log[self.flushed[copy]:upto] if kind == "time"]
        self.published[copy] = max([self.published[copy], *times])
        self.flushed[copy] = upto
        return possible

    def _Move(self, copy: Copy, node: str) -> bool:  # noqa: N802
        taken = {self._partition_of[other] for other in self._owned(node)}
        self.owner[copy] = node
        return node in self.members and self._partition_of[copy] not in taken

    # ---- the protocol

    def _StartRound(self, name: str) -> bool:  # noqa: N802
        possible = name not in self.rounds and bool(self.members)
        self.rounds[name] = _Round(self.epoch, frozenset(self.members))
        return possible

    def _Report(self, node: str, name: str, floor: int, time: int) -> bool:  # noqa: N802
        asked, used = self.rounds[name], self.uses[node]
        possible = (node in self.members and node in asked.asked and time <= self.latest
                    and (not used or time <= min(used))
                    and floor <= min([self.lwm[node], time, *(self.published[copy] for copy in self._owned(node))]))
        if not used:
            self.clock[node] = max(self.clock[node], time)
        asked.answers[node] = floor, time, self._owned(node)
        return possible

    def _Confirm(self, name: str) -> bool:  # noqa: N802
        asked = self.rounds[name]
        asked.confirmed = True
        return asked.complete and asked.epoch == self.epoch

    def _AppendTime(self, partition: int, version: int) -> bool:  # noqa: N802
        self.log[partition].append(("time", version))
        return any(asked.confirmed and version <= min(asked.answers[node][1] for node in asked.asked)
                   for asked in self.rounds.values())

    def _Cut(self, name: str, version: int) -> bool:  # noqa: N802
        asked = self.rounds[name]
        required = [copy for copy, partition in enumerate(self._partition_of) if self._since[partition] <= version]
        possible = (asked.complete and asked.epoch == self.epoch
                    and self.earliest < version <= min(asked.answers[node][0] for node in asked.asked)
                    and all(self.owner[copy] in asked.asked and copy in asked.answers[self.owner[copy]][2]
                            for copy in required))
        self.earliest = version
        return possible

    def __repr__(self) -> str:
        return (f"CatalogSpecification(versions {self.earliest} to {self.latest}, epoch {self.epoch}, members "
                f"{sorted(self.members)}, rounds {self.rounds})")


@attrs.frozen(kw_only=True)
class SpecificationTrace:
    """A run of the simulation in the words of the specification.

    Attributes:
        nodes: the names of the nodes.
        owners: by replica, who hosts it at first.
        partition_of: by replica, its partition.
        since: by partition, the first version with a table.
        first: the newest version at first.
        steps: the actions, with their arguments.
    """

    nodes: tuple[str, ...]
    owners: tuple[str, ...]
    partition_of: tuple[int, ...]
    since: tuple[int, ...]
    first: int
    steps: tuple[Step, ...]

    def check(self) -> CatalogSpecification:
        """Carry out every step; the state at the end.

        Raises:
            TraceRefused: one of them is not the specification's.
        """
        specification = CatalogSpecification(self.nodes, self.owners, self.partition_of, self.since, self.first)
        for step in self.steps:
            specification.take(step)
        return specification


def traced(simulation: CatalogSimulation) -> SpecificationTrace:
    """Run a simulation and give its trace. Tables are not dropped in it: the specification knows no drops.

    Raises:
        SimulationFailure: the run itself failed.
    """
    world = simulation.world
    world.drops_tables = False
    simulation.run()
    (_, first, owners), *steps = world.trace
    places = sorted(world.partitions)
    slots = {owner: slot for slot, owner in enumerate(owners)}
    known: set[str] = set()
    found: list[Step] = []
    for step in steps:
        match step:
            case ("NewVersion", _):
                found.append(("NewVersion",))
            case ("Write" | "AppendTime" as action, zone, number, version):
                found.append((action, places.index((zone, number)), version))
            case ("Flush", node, zone, number, upto):
                found.append(("Flush", slots[node, zone, number], upto))
            case ("MoveReplica", source, target, zone, number):
                slots[target, zone, number] = slots.pop((source, zone, number))
                found.append(("Move", slots[target, zone, number], target))
            case ("Report", _, name, _, _) if name not in known:
                pass  # its round asks nodes that were not the members any more, and comes to nothing
            case _:
                if step[0] == "StartRound":
                    known.add(step[1])
                found.append(step)
    return SpecificationTrace(
        nodes=tuple(sorted(world.nodes)), owners=tuple(owner[0] for owner in owners), first=first,
        partition_of=tuple(places.index((zone, number)) for _, zone, number in owners),
        since=tuple(world.first_table.get(zone, _NEVER) for zone, _ in places), steps=tuple(found))


def to_tla(trace: SpecificationTrace) -> str:
    """The module `Traces` with which `TraceCatalogCompaction.tla` has TLC check this trace."""
    rounds = {step[1]: number for number, step in enumerate(
        (step for step in trace.steps if step[0] == "StartRound"), 1)}
    steps = ",\n  ".join(_step_to_tla(step, rounds) for step in trace.steps)
    nodes = ", ".join(f'"{node}"' for node in trace.nodes)
    owners = ", ".join(f'"{owner}"' for owner in trace.owners)
    copies = ", ".join(str(partition + 1) for partition in trace.partition_of)
    since = ", ".join(map(str, trace.since))
    return (f"---- MODULE Traces ----\nEXTENDS Naturals\nTraceNodes == {{{nodes}}}\n"
            f"TraceRounds == 1..{max(len(rounds), 1)}\n"
            f"First == {trace.first}\nOwners == <<{owners}>>\nCopies == <<{copies}>>\nFirstTables == <<{since}>>\n"
            f"Steps == <<\n  {steps}>>\n====\n")


def _step_to_tla(step: Step, rounds: dict[str, int]) -> str:
    """A tuple of the action's name and its arguments; replicas and partitions count from 1 there."""
    action, *arguments = step
    if action in ("Write", "AppendTime", "Flush", "Move"):
        arguments[0] += 1
    told = [str(rounds[value]) if value in rounds else f'"{value}"' if isinstance(value, str) else str(value)
            for value in arguments]
    return "<<" + ", ".join([f'"{action}"', *told]) + ">>"
