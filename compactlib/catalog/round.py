# SPDX-License-Identifier: Apache-2.0
"""`run_round`: one round of the cluster, run by the coordinator over two calls that the host gives.

    coordinator                           every node, itself included
    1  read membership, pins and term
    2  report ──────────────────────────▶ asks its sources
       ◀────────────────────── NodeReport
    then two processes, in parallel, which fail apart:
    "compaction"                          "replicas update"
    3  decide up to which version         3  the lowest time of all transactions
    4  confirm the membership             4  confirm the membership
    5  cut, if nothing of 1 has changed   5  publish ─▶ proposes it in the logs of the
                                                        partitions that it leads

The host carries both calls over the messages that it has; the values are plain, and can be sent as JSON. Nothing is
repeated: a node that does not answer until the deadline is named, nothing is cut and nothing published, and the next
round asks again.

Why nothing is cut that somebody needs:

- *A report stays true.* Whatever a node reports as its lowest need, no lower need arises there later: a transaction
  begins at the node's own time, a reader not below the low watermark, published times are on disk and only rise. The
  one exception, a replica that is copied from another one, and a pin, which is anybody's, change the cell of the pins,
  and so the cut of a round that began before is refused.
- *Everybody reports*: every node of the topology, and every host of a required partition.
- *Nobody joins unseen*: the cell of the members is a condition of the cut, and the membership is read again before a
  time is handed out. A node that joins begins nothing until the clocks' greatest skew has passed.
- *The earliest version only rises*, by compare-and-set, and a former coordinator's term is refused in that step.

So reports may be old, rounds may run side by side, and every step may happen late, or never.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import attrs

from compactlib.budget import Budget
from compactlib.catalog.members import Members
from compactlib.catalog.plan import CatalogPlan, CutReport
from compactlib.catalog.service import CatalogService
from compactlib.catalog.timestamp import Timestamp
from compactlib.catalog.values import Assignments, NodeId, NodeReport, Published, Topology
from compactlib.contract import CommitFence
from compactlib.errors import Busy, CompactionFailed, CompactlibError, Stale, TaskFailed
from compactlib.report import Printed

_LOGGER = logging.getLogger("compactlib.catalog")
T = TypeVar("T")


class Peers(Protocol):
    """The two calls that a host carries to a node, the coordinator's own among them.

    Either may raise anything, and is cancelled at the deadline.
    """

    async def report(self, node: NodeId) -> NodeReport:
        """Have the node call `CatalogNode.report`, and return what it answers."""

    async def publish(self, node: NodeId, time: Timestamp) -> Published:
        """Have the node call `CatalogNode.publish`, and return what it answers."""


@attrs.frozen(kw_only=True, repr=False)
class RoundReport(Printed):
    """What a round came to.

    Attributes:
        term: the coordinator's.
        topology: the nodes that were asked.
        missing: those that did not report, by name, and why; then nothing was cut, and nothing published.
        plan: what was decided; `None` if that failed.
        cut: what was cut; `None` if nothing was.
        time: the lowest time of all transactions, which was published; `None` if none was.
        published: what the nodes answered to it, by name.
        unpublished: nodes that did not, by name, and why.
    """

    term: int
    topology: Topology
    missing: Mapping[str, str] = attrs.field(factory=dict)
    plan: CatalogPlan | None = None
    cut: CutReport | None = None
    time: Timestamp | None = None
    published: Mapping[str, Published] = attrs.field(factory=dict)
    unpublished: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was cut."""
        return self.cut is None

    @property
    def is_partial(self) -> bool:
        """Whether a node or a zone failed, so that the next round may do more."""
        failed = any(zone.error for each in self.published.values() for zone in each.zones)
        return bool(self.missing or self.unpublished or failed)

    @property
    def why(self) -> str:
        """Why nothing was cut, or what else the next round may do."""
        failed = [f"zone {zone.zone} on node {name}: {zone.error}" for name, each in self.published.items()
                  for zone in each.zones if zone.error]
        failed += [f"node {name} did not publish: {why}" for name, why in self.unpublished.items()]
        if self.cut is None:
            failed.insert(0, self.plan.why if self.plan else "nothing was decided")
        return "; ".join([*(f"node {name}: {why}" for name, why in self.missing.items()), *failed])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row a node."""
        return [{"node": str(node), "reported": node.name not in self.missing, "published": node.name in self.published,
                 "why": self.missing.get(node.name, self.unpublished.get(node.name, ""))}
                for node in sorted(self.topology.nodes)]

    def _summary(self) -> str:
        cut = "nothing was cut" if self.cut is None else f"history was cut to version {self.cut.earliest}"
        return f"round of term {self.term} over {len(self.topology.nodes)} nodes: {cut}; {self.why or 'all is done'}"


async def run_round(peers: Peers, service: CatalogService, members: Members, *, term: int,
                    assignments: Callable[[], Assignments], low_watermark: Timestamp | None, seconds: float = 10.0,
                    fence: CommitFence | None = None) -> RoundReport:
    """Ask every node what it needs, cut what nobody does, and have all publish the lowest time of transactions.

    Args:
        peers: the host's two calls.
        service: the coordinator's catalog; called in worker threads.
        members: which nodes there are; read in worker threads, twice.
        term: the coordinator's, of its election; higher than all terms before.
        assignments: looks up which nodes must host which partitions, from one moment; in a worker thread, twice.
        low_watermark: the coordinator's; `None` before the first one, and then nothing is cut.
        seconds: the deadline of each call, and of the decision with its cut.
        fence: entered around the step that cuts.

    Raises:
        Busy: the store did not answer until the deadline.
        CompactionFailed: the decision or the cut raised (`failures["compaction"]`), or the membership could not be
            confirmed (`failures["replicas update"]`); the other process was done all the same, as `report` says.
        CompactlibError: what the store raised before any node was asked.
        asyncio.CancelledError: the caller was cancelled. A cut under way may still happen, and is as safe as any.
    """
    topology, unchanged = await _in_thread(members.read, seconds, "reading the membership")
    view = await _in_thread(lambda: service.view(topology=topology, low_watermark=low_watermark, term=term,
                                                 conditions=[unchanged]), seconds, "reading pins and term")
    answers, missing = await _all_asked(topology, peers.report, "report", seconds)
    missing |= {node.name: f"answered as {answers[node.name].node}" for node in topology.nodes
                if node.name in answers and answers[node.name].node != node}
    reports = [answers[name] for name in sorted(answers.keys() - missing.keys())]
    report = RoundReport(term=term, topology=topology, missing=missing)
    budget = Budget()

    def compaction() -> tuple[CatalogPlan, CutReport | None]:
        """Decide, and cut if everything still holds; assignments are looked up anew right before."""
        plan = service.plan(view=attrs.evolve(
            view, reports=tuple(reports), assignments=assignments(), history=service.history,
            now=service.clock.present()))
        if plan.target is None:
            return plan, None
        plan = attrs.evolve(plan, view=attrs.evolve(plan.view, assignments=assignments()))
        return plan, service.compact(plan, fence=fence, budget=budget)

    async def replicas_update() -> None:
        """Hand the lowest time of all transactions to all nodes, if all have reported and none has joined since."""
        nonlocal report
        if missing or not reports:
            return
        time = min(each.transactions_from for each in reports)
        if (await _in_thread(members.read, seconds, "confirming the membership"))[0] != topology:
            raise Stale("the membership has changed since the nodes were asked, so their lowest time is published to "
                        "none; the next round asks the others, too")
        published, unpublished = await _all_asked(topology, lambda node: peers.publish(node, time),
                                                     "publish", seconds)
        report = attrs.evolve(report, time=time, published=published, unpublished=unpublished)

    cut, updated = await asyncio.gather(
        _in_thread(compaction, seconds, "the decision and the cut", budget=budget), replicas_update(),
        return_exceptions=True)
    if not isinstance(cut, BaseException):
        report = attrs.evolve(report, plan=cut[0], cut=cut[1])
    failures = {process: _as_library_error(process, error) for process, error in (
        ("compaction", cut), ("replicas update", updated)) if isinstance(error, BaseException)}
    if failures:
        raise CompactionFailed(report=report, failures=failures)
    return report


async def _all_asked(topology: Topology, call: Callable[[NodeId], Awaitable[T]], what: str,
                     seconds: float) -> tuple[dict[str, T], dict[str, str]]:
    """Return what each node answers, by name; and of those that do not, why."""
    async def asked(node: NodeId) -> T:
        async with asyncio.timeout(seconds):
            return await call(node)

    nodes = sorted(topology.nodes)
    answers: dict[str, T] = {}
    silent: dict[str, str] = {}
    for node, answer in zip(nodes, await asyncio.gather(*map(asked, nodes), return_exceptions=True), strict=True):
        if not isinstance(answer, BaseException):
            answers[node.name] = answer
        elif isinstance(answer, TimeoutError):
            silent[node.name] = f"did not answer within {seconds:g} seconds"
        elif not isinstance(answer, Exception):
            raise answer
        else:
            silent[node.name] = f"{type(answer).__name__}: {answer}"
            if not isinstance(answer, CompactlibError | OSError):  # as of a node that is away, for instance
                _LOGGER.warning("the host's %s of node %s raised %r; the node counts as silent", what, node, answer,
                                exc_info=answer)
    return answers, silent


async def _in_thread(call: Callable[[], T], seconds: float, what: str, *, budget: Budget | None = None) -> T:
    """Return what a call in a worker thread returns; it goes on alone after the deadline, which cancels its budget."""
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.to_thread(call)
    except TimeoutError as error:
        raise Busy(f"{what} took longer than {seconds:g} seconds; the next round tries again") from error
    finally:
        if budget is not None:
            budget.cancel()


def _as_library_error(process: str, error: BaseException) -> CompactlibError:
    if isinstance(error, CompactlibError):
        return error
    if not isinstance(error, Exception):
        raise error
    _LOGGER.warning("the host raised %r in the %s of a round", error, process, exc_info=error)
    failed = TaskFailed(f"the host raised {type(error).__name__}: {error}", task=process, kind=type(error).__name__,
                        detail=str(error))
    failed.__cause__ = error
    return failed
