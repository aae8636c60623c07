# SPDX-License-Identifier: Apache-2.0
"""`CatalogNode`: a node of a cluster, with its catalog, its sources of needs, its membership and its upkeep.

    node = CatalogNode("n1", log, clock, database)
    node.published.register(...)        # the partitions of this node
    with node:                          # joins, and starts the node's thread
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(node.coordinate(peers))      # runs rounds while this node coordinates
            ...                         # the host serves report() and publish() to the coordinator

The thread follows the log, takes part in the election, raises the low watermark, and deletes unreadable partitions and
leftovers. Rounds run in the host's event loop, since the host makes the calls to other nodes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from compactlib.budget import Budget
from compactlib.catalog.errors import ClockSkewExceeded, NotReady, TimeBeforeHistory
from compactlib.catalog.lease import Elected, LeaseElection
from compactlib.catalog.members import Members
from compactlib.catalog.needs import ActiveTransactions, NeedSource, local_report
from compactlib.catalog.plan import CatalogPolicy
from compactlib.catalog.published import PublishedTimes
from compactlib.catalog.round import Peers, RoundReport, run_round
from compactlib.catalog.service import CatalogService
from compactlib.catalog.timestamp import HybridClock, Timestamp, show
from compactlib.catalog.update_log import UpdateLog
from compactlib.catalog.values import Assignments, NodeId, NodeReport, Topology
from compactlib.catalog.watermark import LowWatermark
from compactlib.contract import CommitFence
from compactlib.errors import Busy, Stale, TaskFailed
from compactlib.observer import Observer, Observers
from compactlib.service import PeriodicService

_LOGGER = logging.getLogger("compactlib.catalog")
_MAX_REPORTS = 10


class Database(Protocol):
    """The host's database, as a node calls it. Called in worker threads; may block, and may raise any exception."""

    def assignments(self) -> Assignments:
        """Read the assignments of all zones at the same moment, including planned moves."""

    def publish(self, zone: int, partitions: int, time: Timestamp) -> object:
        """Propose `time` in the log of each partition of the zone that this node leads.

        Every replica that applies the command calls `PublishedTimes.applied`; the time counts after the next flush.
        """

    def destroy(self, table: int, partition: int) -> None:
        """Remove the data and the log of a partition on this node; its table was dropped and has no readers."""


class CatalogNode(PeriodicService):
    """A node of a cluster. Any thread may call it. Its thread starts and stops like that of every `PeriodicService`.

    Args:
        name: unique in the cluster.
        log: shared by all nodes.
        clock: the node's clock; its skew is the cluster's limit.
        database: the host's database.
        lease_seconds: the lease of an election in the log's store; `None`: the host calls `elected`.
        data_availability_seconds: how long old data stays readable.
        delay_seconds: see `CatalogService`.
        sources: further sources of needs: `RebalanceNeed`, the host's own.
        follow_seconds: interval between reads of the log.
        upkeep_seconds: interval between upkeeps: raising the low watermark, deleting unreadable partitions and the
            leftovers of cuts.
        policy: how much of the unneeded history is cut.
        observer: notified of rounds (`catalog_round`), and of the events of `CatalogService`.

    Attributes:
        id: this node's name and incarnation; `None` before it has joined.
        published: usable before the node has joined.
        coordinator: the coordinator known to this node; `None` before the first election.
        last_round: the report of the last round that this node ran.
        last_error: the last error of the thread or of a round; it was logged, and the work is retried.
        failures: number of such errors.
    """

    def __init__(self, name: str, log: UpdateLog, clock: HybridClock, database: Database, *,
                 lease_seconds: float | None = 15.0, data_availability_seconds: float = 600.0,
                 delay_seconds: float = 0.5, sources: Sequence[NeedSource] = (), follow_seconds: float = 0.1,
                 upkeep_seconds: float = 60.0, policy: CatalogPolicy | None = None,
                 observer: Observer | None = None) -> None:
        super().__init__(self._keep_up, name=name, every_seconds=follow_seconds, retry_seconds=follow_seconds,
                         max_retry_seconds=10.0, clock=clock.clock)
        self.service: CatalogService = CatalogService(log, clock, delay_seconds=delay_seconds, policy=policy,
                                                      observer=observer)
        self.published: PublishedTimes = PublishedTimes(self.service, name)
        self.coordinator: Elected | None = None
        self.last_round: RoundReport | None = None
        self._database = database
        self._observer = Observers(observer)
        self._members = Members(log.store, log.partition, clock=clock.clock)
        self._watermark = LowWatermark(self.service, name, data_availability_seconds=data_availability_seconds)
        self._transactions = ActiveTransactions(self.service)
        self._sources = (self._watermark, *sources)
        self.id: NodeId | None = None
        self._may_begin = False  # True once the clocks' greatest skew has passed after the admission
        self._reported: Timestamp = 0
        self._election = None if lease_seconds is None else LeaseElection(
            log.store, name, lease_seconds=lease_seconds, partition=log.partition, clock=clock.clock, rng=log.rng)
        election_seconds = (lease_seconds or 15.0) / 3
        # The work of the node's thread, with the pause between two calls.
        upkeep = (self._watermark.advance, self._destroy_unreadable,
                  lambda: self.service.reclaim(budget=self._budget))
        self._work: Mapping[Callable[[], object], float] = {
            self.service.poll: 0.0, self._poll_election: election_seconds, self._read_membership: election_seconds,
            **dict.fromkeys(upkeep, upkeep_seconds), self._wake_if_changed: 0.0}
        self._called: dict[Callable[[], object], float] = {}
        self._topology: Topology | None = None
        self._seen: object = None  # membership and low watermark at the last check
        self._wake_rounds: Callable[[], None] = lambda: None

    # -- membership

    def join(self) -> NodeId:
        """Become a member, in the next incarnation of this node, and wait for the clocks' greatest skew.

        A coordinator that published a time before does not know this node. After the wait, this node's clock is above
        any such time.

        Raises:
            ClockSkewExceeded: this node's clock is behind the log, or behind its own low watermark, by more than the
                skew; the node was not admitted.
            TimeBeforeHistory: a registered partition needs a version that was cut while this node was no member; the
                node was removed again. Remove that partition, and copy it again.
            Busy, OutcomeUnknown: as `Members.join`.
        """
        clock = self.service.clock
        self.service.poll()
        history = self.service.history
        for time in (history.catalog(history.latest).commit, self._watermark.value.time or 0):
            ahead = clock.ahead_ms(time)
            if ahead > clock.max_skew_ms:
                raise ClockSkewExceeded(time=time, ahead_ms=ahead, limit_ms=clock.max_skew_ms,
                                        advice=f"node {self.name} is not admitted until its clock is right")
        self._may_begin, self._reported = False, 0
        joined = self._members.join(self.name)
        # From here on, a round that began before cannot cut, and each later round requests this node's report.
        self.service.poll()
        needed, _ = self.published.needs_and_hosted()
        try:
            if needed is not None:
                self.service.history.at(needed.time)
        except TimeBeforeHistory:
            self.leave()
            raise
        self.id = joined
        clock.clock.sleep(clock.max_skew_ms / 1000)
        self._may_begin = True
        return joined

    def leave(self, name: str | None = None) -> None:
        """Remove a node from the membership: this node, or another node that has ended, as the host guarantees.

        Until then nothing is cut, since transactions of the node may still run.

        Raises:
            Busy, OutcomeUnknown: as `Members.leave`.
        """
        if name is None or name == self.name:
            self._may_begin, self.id = False, None
        self._members.leave(self.name if name is None else name)
        self._wake_rounds()

    @property
    def transactions(self) -> ActiveTransactions:
        """The active transactions.

        Raises:
            NotReady: the node has not joined, or the clocks' greatest skew has not passed since.
        """
        self._require_joined()
        return self._transactions

    @property
    def watermark(self) -> LowWatermark:
        """The low watermark and its readers; raises `NotReady` as `transactions`."""
        self._require_joined()
        return self._watermark

    def _require_joined(self) -> None:
        if not self._may_begin:
            raise NotReady(f"node {self.name} begins no transactions or reads before join() has returned, nor after it "
                           f"was removed")

    # -- the coordinator's calls

    def report(self) -> NodeReport:
        """Return the needs and partitions of this node, for the coordinator's `Peers.report`.

        Raises:
            NotReady: the node has not joined.
            Busy: at each attempt, new versions arrived while the sources were called.
            CompactlibError: the log cannot be read.
        """
        joined = self.id
        if joined is None:
            raise NotReady(f"node {self.name} has not joined")
        self.service.poll()
        for _ in range(_MAX_REPORTS):
            history = self.service.history
            report = local_report(joined, history, transactions=self._transactions, partitions=self.published,
                                  sources=self._sources)
            # A version that arrived since may be in force already, and the report does not cover it.
            self.service.poll()
            if self.service.history.latest == history.latest:
                self._reported = max(self._reported, report.transactions_from)
                return report
        raise Busy(f"the catalog grew {_MAX_REPORTS} times while this node's sources were called; the next round "
                   f"requests another report")

    def publish(self, time: Timestamp) -> None:
        """Propose a round's lowest time in the logs of the partitions that this node leads, for `Peers.publish`.

        The failure of a zone stops no other zone. An old or repeated time is harmless: a published time only rises.

        Raises:
            Stale: the time is above all reports of this incarnation, so it is not the minimum of a round with them.
            TimeBeforeHistory: the time lies before the retained history.
            TaskFailed: zones failed; the message names them.
        """
        if time > self._reported:
            raise Stale(f"time {show(time)} is above {show(self._reported)}, the highest time that node {self.name} "
                        f"has reported; it is not published")
        history = self.service.history
        versions = range(history.version_at(time), history.version_at(self.service.clock.present()) + 1)
        partitions = {zone.id: zone.partitions for version in versions
                      for zone in history.catalog(version).zones.values()}
        failed: list[str] = []
        for zone in sorted(partitions):
            try:
                self._database.publish(zone, partitions[zone], time)
            except Exception as error:
                _LOGGER.warning("zone %d could not publish on node %s: %r", zone, self.name, error, exc_info=error)
                failed.append(f"zone {zone}: {type(error).__name__}: {error}")
        if failed:
            raise TaskFailed("; ".join(failed), task="publish", kind="zones", detail="; ".join(failed))

    # -- coordinating

    def elected(self, term: int, node: str) -> None:
        """Set the coordinator that the host elected. A term that is not above the last changes nothing."""
        if self.coordinator is None or term > self.coordinator.term:
            self.coordinator = Elected(term, node)
            self._wake_rounds()

    async def round(self, peers: Peers, *, seconds: float = 10.0, fence: CommitFence | None = None) -> RoundReport:
        """Run a round now; see `run_round`.

        Raises:
            NotReady: this node knows no coordinator, or another node coordinates.
        """
        elected = self.coordinator
        if elected is None or elected.node != self.name:
            raise NotReady(f"node {self.name} does not coordinate; {elected} does" if elected else
                           f"node {self.name} does not know who coordinates")
        self.last_round = await run_round(
            peers, self.service, self._members, term=elected.term, assignments=self._database.assignments,
            low_watermark=self._watermark.value.time, seconds=seconds, fence=fence)
        self._observer.event("catalog_round", report=self.last_round)
        return self.last_round

    async def coordinate(self, peers: Peers, *, interval_seconds: float = 300.0, retry_seconds: float = 10.0,
                         seconds: float = 10.0, fence: CommitFence | None = None) -> None:
        """Run rounds while this node coordinates, until the caller is cancelled. One call at a time.

        A round begins when this node is elected, when its low watermark rises, when the membership changes, and after
        `interval_seconds`. An event during a round starts another round. The error of a round is logged and kept as
        `last_error`. A failed or partial round is retried after `retry_seconds`.

        Args:
            peers: the host's two calls.
            interval_seconds: longest pause between two rounds.
            retry_seconds: pause after a failed or partial round.
            seconds: deadline of each call.
            fence: entered around each cut.
        """
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        def wake_rounds() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(wake.set)

        self._wake_rounds = wake_rounds
        while True:
            wake.clear()
            pause = interval_seconds
            if self.coordinator is not None and self.coordinator.node == self.name:
                try:
                    report = await self.round(peers, seconds=seconds, fence=fence)
                    pause = retry_seconds if report.is_partial else interval_seconds
                except Exception as error:
                    self.last_error: BaseException | None = error
                    self.failures: int = self.failures + 1
                    _LOGGER.warning("a round of node %s failed, and is tried again in %g s", self.name, retry_seconds,
                                    exc_info=error)
                    pause = retry_seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()

    # -- the node's thread

    def start(self) -> None:
        """Join, unless the node is a member already, and start the thread; `with` starts and closes.

        Raises:
            ClockSkewExceeded, Busy, OutcomeUnknown: as `join`.
        """
        if not self._may_begin:
            self.join()
        super().start()

    def close(self) -> None:
        """Stop the thread and close the catalog; the node stays a member until a node calls `leave` for it."""
        self.stop()
        self.service.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_up(self, budget: Budget) -> None:
        now = self._clock.monotonic()
        errors: list[Exception] = []
        for each, seconds in self._work.items():
            if now - self._called.get(each, -math.inf) < seconds:
                continue
            self._called[each] = now
            try:
                each()
            except Exception as error:  # a call that always fails must not stop the others
                errors.append(error)
        for other in errors[1:]:
            _LOGGER.warning("node %s: %s", self.name, other, exc_info=other)
        if errors:
            raise errors[0]

    def _poll_election(self) -> None:
        if self._election is not None:
            elected = self._election.poll()
            self.elected(elected.term, elected.node)

    def _read_membership(self) -> None:
        topology, _ = self._members.read()
        if self._may_begin and self.id not in topology.nodes:
            # The host removed this node, perhaps while this process was paused.
            self._may_begin, self.id = False, None
        self._topology = topology

    def _wake_if_changed(self) -> None:
        before, self._seen = self._seen, (self._topology, self._watermark.value.time)
        if self._seen != before:
            self._wake_rounds()

    def _destroy_unreadable(self) -> None:
        since = self._watermark.value.time
        if since is None:
            return
        for table, partition, incarnation in self.published.unreadable(since):
            self._database.destroy(table, partition)
            self.published.remove(table, partition, incarnation)
