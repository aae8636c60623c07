# SPDX-License-Identifier: Apache-2.0
"""The language of `tests/catalog/scenarios/protocol_*.txt`: nodes, what they hear, and what comes of it.

One command a line; what follows `#` is for the reader. Messages wait until they are delivered or lost.

| command | what it does |
| --- | --- |
| `nodes a b c` | start these nodes; each knows the topology |
| `elect a in 1`, `elect b in 2 on b c` | an election ends; all nodes hear of it, or those named |
| `ask a`, `watermark a` | somebody wants a round; the low watermark moved |
| `deliver`, `deliver to b`, `deliver request to b` | messages, also those that follow from them |
| `lose to b`, `repeat` | what waits for `b` is gone; everything that waits is there twice |
| `decide compact`, `decide hold` | what the host answers from now on |
| `fail decide on a`, `hang decide on a`, `mend a` | the host's call ends in an error, or never |
| `wait 10` | seconds pass, timers fire |
| `restart b`, `leave b`, `join d` | a new life; a change of the topology |
| `expect ...` | see `Story.expect` |
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from compactlib.catalog import NodeId, NodeOptions, Topology, ZoneResult
from compactlib.catalog.errors import HostFailed
from compactlib.catalog.round.effects import (
    Broke,
    CancelTimer,
    Collect,
    ConfirmTopology,
    Decide,
    Decided,
    Effect,
    Elected,
    Event,
    HostCall,
    ListZones,
    PublishZone,
    Received,
    Reported,
    Send,
    SetTimer,
    SnapshotWritten,
    Tell,
    TimerFired,
    TopologyConfirmed,
    TopologyIs,
    Triggered,
    WriteSnapshot,
    ZonePublished,
    ZonesListed,
)
from compactlib.catalog.round.messages import Refusal
from compactlib.catalog.round.node import CatalogNode
from compactlib.catalog.round.report import RoundReport, Trigger
from compactlib.outcome import Done, Failed
from tests.catalog.round.protocol import CUT, HOLD, PLAN, report_of

CALLS: dict[type[HostCall], str] = {Collect: "report", ListZones: "zones", PublishZone: "publish",
                                    ConfirmTopology: "confirm", Decide: "decide", WriteSnapshot: "write"}


class Story:
    """Carries out a scenario and checks what it expects."""

    def __init__(self) -> None:
        self.now = 0.0
        self.nodes: dict[str, CatalogNode] = {}
        self.epoch = 0
        self.messages: list[tuple[str, Send]] = []
        self.timers: dict[tuple[str, str], float] = {}
        self.broken: dict[tuple[str, str], str] = {}
        self.decision = "hold"
        self.reports: list[RoundReport] = []
        self.refused: list[tuple[str, str, str]] = []

    def run(self, text: str) -> None:
        """Carry out all lines; a failure says which."""
        for place, line in enumerate(text.splitlines(), 1):
            words = shlex.split(line, comments=True)
            if words:
                try:
                    command: Callable[..., None] = getattr(self, f"do_{words[0]}")
                    command(*words[1:])
                except Exception as error:
                    error.add_note(f"in line {place}: {line}")
                    raise

    # ---- nodes

    def hand(self, name: str, event: Event) -> None:
        """An event for a node, and what follows at once."""
        effects = self.nodes[name].handle(event, self.now)
        self.nodes[name].audit()
        for effect in effects:
            self._carry_out(name, effect)

    def _carry_out(self, name: str, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.messages.append((name, effect))
            if isinstance(effect.message, Refusal):
                self.refused.append((effect.to, name, effect.message.reason.name))
        elif isinstance(effect, SetTimer):
            self.timers[name, effect.name] = effect.at
        elif isinstance(effect, CancelTimer):
            self.timers.pop((name, effect.name), None)
        elif isinstance(effect, Tell):
            self.reports.append(effect.report)
        elif isinstance(effect, Collect | ListZones | PublishZone | ConfirmTopology | Decide | WriteSnapshot):
            how = self.broken.get((name, CALLS[type(effect)]))
            if how == "fail":
                error = HostFailed(call=CALLS[type(effect)], kind="OSError", detail="disk")
                self.hand(name, Broke(effect.ticket, error))
            elif how is None:
                self.hand(name, self._answer(name, effect))

    def _answer(self, name: str, call: HostCall) -> Event:
        match call:
            case Collect():
                return Reported(call.ticket, report_of(name, life=self.nodes[name].me.incarnation))
            case ListZones():
                return ZonesListed(call.ticket, {1: 2, 2: 2})
            case PublishZone():
                return ZonePublished(call.ticket, ZoneResult(call.zone, published=call.partitions))
            case ConfirmTopology():
                return TopologyConfirmed(call.ticket, call.topology == self.topology())
            case Decide():
                return Decided(call.ticket, PLAN if self.decision == "compact" else HOLD)
            case WriteSnapshot():
                return SnapshotWritten(call.ticket, Done(CUT))

    def topology(self) -> Topology:
        """The membership."""
        return Topology(frozenset(node.me for node in self.nodes.values()), self.epoch)

    def _membership_changed(self) -> None:
        self.epoch += 1
        for name in list(self.nodes):
            self.hand(name, TopologyIs(self.topology()))

    # ---- commands

    def do_nodes(self, *names: str) -> None:
        self.nodes = {name: CatalogNode(NodeId(name), NodeOptions(interval_seconds=None)) for name in names}
        for name in names:
            self.hand(name, TopologyIs(self.topology()))

    def do_elect(self, name: str, _in: str, term: str, _on: str = "", *hearing: str) -> None:
        for one in hearing or tuple(self.nodes):
            self.hand(one, Elected(int(term), name))

    def do_ask(self, name: str) -> None:
        self.hand(name, Triggered(Trigger.MANUAL))

    def do_watermark(self, name: str) -> None:
        self.hand(name, Triggered(Trigger.WATERMARK_MOVED))

    def do_deliver(self, *words: str) -> None:
        to = words[-1] if words else ""
        while True:
            found = next((one for one in self.messages if one[1].to == to or not to), None)
            if found is None:
                return
            self.messages.remove(found)
            if found[1].to in self.nodes:
                self.hand(found[1].to, Received(found[0], found[1].message))

    def do_lose(self, _to: str, name: str) -> None:
        self.messages = [one for one in self.messages if one[1].to != name]

    def do_repeat(self) -> None:
        self.messages = [one for one in self.messages for _ in range(2)]

    def do_decide(self, what: str) -> None:
        self.decision = what

    def do_fail(self, call: str, _on: str, name: str) -> None:
        self.broken[name, call] = "fail"

    def do_hang(self, call: str, _on: str, name: str) -> None:
        self.broken[name, call] = "hang"

    def do_mend(self, name: str) -> None:
        self.broken = {key: how for key, how in self.broken.items() if key[0] != name}

    def do_wait(self, seconds: str) -> None:
        end = self.now + float(seconds)
        while due := [(at, key) for key, at in self.timers.items() if at <= end]:
            at, key = min(due)
            del self.timers[key]
            self.now = max(self.now, at)
            self.hand(key[0], TimerFired(key[1]))
        self.now = end

    def do_restart(self, name: str) -> None:
        self.nodes[name] = CatalogNode(NodeId(name, self.nodes[name].me.incarnation + 1),
                                       NodeOptions(interval_seconds=None))
        self.timers = {key: at for key, at in self.timers.items() if key[0] != name}
        self._membership_changed()

    def do_leave(self, name: str) -> None:
        del self.nodes[name]
        self._membership_changed()

    def do_join(self, name: str) -> None:
        self.nodes[name] = CatalogNode(NodeId(name), NodeOptions(interval_seconds=None))
        self._membership_changed()

    # ---- what must hold

    def do_expect(self, what: str, *words: str) -> None:
        """Of the last round: `compaction done`, `publication failed ReportsMissing`, `missing b c`, `triggers ...` and
        `failures ...`; besides, `rounds 2`, `no round on a`, `coordinator a on b`, `refused a by c STALE_TERM`.
        """
        found = getattr(self, f"_found_{what}")(*words)
        assert found == " ".join(words), f"expected {what} {' '.join(words)}, found {found}"

    @property
    def last(self) -> RoundReport:
        """The round that ended last."""
        return self.reports[-1]

    def _found_compaction(self, *_: str) -> str:
        return _told(self.last.compaction)

    def _found_publication(self, *_: str) -> str:
        return _told(self.last.publication)

    def _found_missing(self, *_: str) -> str:
        return " ".join(failure.node for failure in self.last.missing) or "nobody"

    def _found_rounds(self, *_: str) -> str:
        return str(len(self.reports))

    def _found_no(self, _round: str, _on: str, name: str) -> str:
        return f"round on {name}" if self.nodes[name].running is None else str(self.nodes[name].running)

    def _found_coordinator(self, *words: str) -> str:
        return f"{self.nodes[words[-1]].coordinator or 'nobody'} on {words[-1]}"

    def _found_refused(self, *_: str) -> str:
        return "{} by {} {}".format(*self.refused[-1]) if self.refused else "nothing"

    def _found_triggers(self, *_: str) -> str:
        return ", ".join(self.last.triggers)

    def _found_failures(self, *_: str) -> str:
        assert isinstance(self.last.publication, Done)
        return "; ".join(map(str, self.last.publication.stats.failures)) or "none"


def _told(outcome: object) -> str:
    return f"failed {type(outcome.error).__name__}" if isinstance(outcome, Failed) else type(outcome).__name__.lower()
