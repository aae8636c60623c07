# SPDX-License-Identifier: Apache-2.0
"""`run_round`: a round of the cluster, run by the coordinator with two calls that the host implements.

    coordinator                           every node, itself included
    1  read membership, pins and term
    2  report ──────────────────────────▶ calls its sources
       ◀────────────────────── NodeReport
    then two processes, in parallel; the failure of one does not stop the other:
    "compaction"                          "replicas update"
    3  decide up to which version         3  the lowest time of all transactions
    4  confirm the membership             4  confirm the membership
    5  cut, if nothing of 1 has changed   5  publish ─▶ proposes it in the logs of the
                                                        partitions that it leads

The host sends both calls over its own messages; the values are plain, and can be sent as JSON. No call is retried: the
report names each node without an answer at the deadline, nothing is cut or published, and the next round calls again.

Why no needed version is cut:

- *A report stays true.* After a node has reported its lowest need, no lower need arises on that node: a transaction
  begins at the node's own time, a reader not below the low watermark, published times are on disk and only rise. There
  are two exceptions, the copy of a replica and a pin. Both change the cell of the pins, so that the cut of a round that
  began before is refused.
- *All nodes report*: every node of the topology, and every host of a required partition.
- *No node joins unnoticed*: the cell of the members is a condition of the cut, and the membership is read again before
  a time is published. A node that joins begins no transaction until the clocks' greatest skew has passed.
- *The earliest version only rises*, by compare-and-set, and a former coordinator's term is refused in that step.

So reports may be old, rounds may run at the same time, and every step may be late or missing.
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
from compactlib.catalog.values import Assignments, NodeId, NodeReport, Topology
from compactlib.contract import CommitFence
from compactlib.errors import Busy, CompactionFailed, CompactlibError, Stale, TaskFailed
from compactlib.report import Printed

_LOGGER = logging.getLogger("compactlib.catalog")
T = TypeVar("T")


class Peers(Protocol):
    """The two calls to a node, which the host implements; the coordinator's own node is called, too.

    A call may raise any exception, and is cancelled at the deadline.
    """

    async def report(self, node: NodeId) -> NodeReport:
        """Return the result of `CatalogNode.report` on the node."""

    async def publish(self, node: NodeId, time: Timestamp) -> None:
        """Call `CatalogNode.publish` on the node, and raise if it raises."""


@attrs.frozen(kw_only=True, repr=False)
class RoundReport(Printed):
    """The report of a round.

    Attributes:
        term: the coordinator's term.
        topology: the nodes of the round.
        missing: the reason by name of each node that did not report; if not empty, nothing was cut or published.
        plan: the decision; `None` if it failed.
        cut: the report of the cut; `None` if nothing was cut.
        time: the lowest time of all transactions, which was published; `None` if no time was.
        published: the names of the nodes that published the time.
        unpublished: the reason by name of each other node: no answer, or the zones that failed there.
    """

    term: int
    topology: Topology
    missing: Mapping[str, str] = attrs.field(factory=dict)
    plan: CatalogPlan | None = None
    cut: CutReport | None = None
    time: Timestamp | None = None
    published: tuple[str, ...] = ()
    unpublished: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was cut."""
        return self.cut is None

    @property
    def is_partial(self) -> bool:
        """Whether a node failed, or a zone on a node, so that the next round may do more."""
        return bool(self.missing or self.unpublished)

    @property
    def why(self) -> str:
        """Why nothing was cut, and which nodes and zones failed."""
        missing = [f"node {name}: {why}" for name, why in self.missing.items()]
        uncut = [] if self.cut else [self.plan.why if self.plan else "nothing was decided"]
        unpublished = [f"node {name} did not publish: {why}" for name, why in self.unpublished.items()]
        return "; ".join([*missing, *uncut, *unpublished])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each node."""
        return [{"node": str(node), "reported": node.name not in self.missing, "published": node.name in self.published,
                 "why": self.missing.get(node.name, self.unpublished.get(node.name, ""))}
                for node in sorted(self.topology.nodes)]

    def _summary(self) -> str:
        cut = "nothing was cut" if self.cut is None else f"history was cut to version {self.cut.earliest}"
        return f"round of term {self.term} over {len(self.topology.nodes)} nodes: {cut}; {self.why or 'all is done'}"


async def run_round(peers: Peers, service: CatalogService, members: Members, *, term: int,
                    assignments: Callable[[], Assignments], low_watermark: Timestamp | None, seconds: float = 10.0,
                    fence: CommitFence | None = None) -> RoundReport:
    """Collect the needs of all nodes, cut the unneeded history, and have all nodes publish the lowest transaction time.

    Args:
        peers: the host's two calls.
        service: the coordinator's catalog; called in worker threads.
        members: the nodes; read twice, in worker threads.
        term: the coordinator's term; higher than all earlier terms.
        assignments: reads the assignments of all zones at the same moment; called twice, in a worker thread.
        low_watermark: the coordinator's; `None` before it was first raised, and then nothing is cut.
        seconds: deadline of each call, and of the decision with its cut.
        fence: entered around the cut.

    Raises:
        Busy: the store did not answer before the deadline.
        CompactionFailed: the decision or the cut raised (`failures["compaction"]`), or the membership could not be
            confirmed (`failures["replicas update"]`); `report` has the result of the other process.
        CompactlibError: from the store, before any node was called.
        asyncio.CancelledError: the caller was cancelled. A running cut may still commit, which is safe.
    """
    topology, unchanged = await _in_thread(members.read, seconds, "reading the membership")
    view = await _in_thread(lambda: service.view(topology=topology, low_watermark=low_watermark, term=term,
                                                 conditions=unchanged), seconds, "reading pins and term")
    answers, missing = await _call_all(topology, peers.report, "report", seconds)
    missing |= {node.name: f"answered as {answers[node.name].node}" for node in topology.nodes
                if node.name in answers and answers[node.name].node != node}
    reports = [answers[name] for name in sorted(answers.keys() - missing.keys())]
    report = RoundReport(term=term, topology=topology, missing=missing)
    budget = Budget()

    def compaction() -> tuple[CatalogPlan, CutReport | None]:
        """Decide, and cut if the decision still holds with the assignments read again right before the cut."""
        plan = service.plan(view=attrs.evolve(
            view, reports=tuple(reports), assignments=assignments(), history=service.history,
            now=service.clock.present()))
        if plan.target is None:
            return plan, None
        plan = attrs.evolve(plan, view=attrs.evolve(plan.view, assignments=assignments()))
        return plan, service.compact(plan, fence=fence, budget=budget)

    async def replicas_update() -> None:
        """Publish the lowest time of all transactions, if all nodes have reported and no node has joined since."""
        nonlocal report
        if missing or not reports:
            return
        time = min(each.transactions_from for each in reports)
        if (await _in_thread(members.read, seconds, "confirming the membership"))[0] != topology:
            raise Stale("the membership has changed since the nodes were called, so no time is published; the next "
                        "round calls the new members, too")
        published, unpublished = await _call_all(topology, lambda node: peers.publish(node, time), "publish", seconds)
        report = attrs.evolve(report, time=time, published=tuple(published), unpublished=unpublished)

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


async def _call_all(topology: Topology, call: Callable[[NodeId], Awaitable[T]], what: str,
                    seconds: float) -> tuple[dict[str, T], dict[str, str]]:
    """Call all nodes at once; return the answers by name, and the reasons by name of missing answers."""
    async def answer_of(node: NodeId) -> T:
        async with asyncio.timeout(seconds):
            return await call(node)

    nodes = sorted(topology.nodes)
    answers: dict[str, T] = {}
    silent: dict[str, str] = {}
    for node, answer in zip(nodes, await asyncio.gather(*map(answer_of, nodes), return_exceptions=True), strict=True):
        if not isinstance(answer, BaseException):
            answers[node.name] = answer
        elif isinstance(answer, TimeoutError):
            silent[node.name] = f"did not answer within {seconds:g} seconds"
        elif not isinstance(answer, Exception | asyncio.CancelledError):  # a cancel of the round raises in `gather`
            raise answer
        else:
            silent[node.name] = f"{type(answer).__name__}: {answer}"
            if not isinstance(answer, CompactlibError | OSError):  # OSError: the node is not reachable, for instance
                _LOGGER.warning("the host's %s of node %s raised %r; the node counts as silent", what, node, answer,
                                exc_info=answer)
    return answers, silent


async def _in_thread(call: Callable[[], T], seconds: float, what: str, *, budget: Budget | None = None) -> T:
    """Run a call in a worker thread. At the deadline, cancel its budget and raise; the thread itself runs on."""
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
    if not isinstance(error, Exception | asyncio.CancelledError):
        raise error
    _LOGGER.warning("the host raised %r in the %s of a round", error, process, exc_info=error)
    failed = TaskFailed(f"the host raised {type(error).__name__}: {error}", task=process, kind=type(error).__name__,
                        detail=str(error))
    failed.__cause__ = error
    return failed
