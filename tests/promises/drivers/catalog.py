# SPDX-License-Identifier: Apache-2.0
"""The driver of a catalog over a shared key-value store, with its pins, watermark and published times.

The pins of a process, and the partitions that it removes, have names that no other process uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, TypeVar

import attrs

from compactlib.catalog import (
    CatalogPlan,
    CatalogService,
    DropObject,
    HybridClock,
    LowWatermark,
    NodeId,
    NodeReport,
    PublishedTimes,
    PutObject,
    Schema,
    Topology,
    UpdateLog,
)
from compactlib.catalog.errors import ClockSkewExceeded
from compactlib.errors import CompactlibError, Stale
from compactlib.kv import MemoryStore, OutcomeUnknown
from compactlib.testing import Change, Driver, HostLock, Journal, World, WorldClock
from tests.promises.drivers.denied import Denied, standing

AnswerT = TypeVar("AnswerT")

LONG = 43_200.0
LIFE: dict[str, Any] = {"incarnation": 1, "created_at": 1 << 60}  # no cut passes these times
SHARED_TABLE = 1
"""Every life of the node hosts it."""
LONGEST_WAIT_SECONDS = 300.0


@attrs.frozen
class Executed:
    """A batch: schemas created, each with a unique name, and schemas dropped."""

    created: tuple[str, ...]
    dropped: tuple[str, ...]


@attrs.frozen
class Version:
    """An acknowledged version."""

    number: int
    activation: int
    schemas: frozenset[str]


@attrs.frozen
class Cut:
    """A cut of the history to a version."""

    version: int


@attrs.frozen
class Reached:
    """A cut to a version, in a coordinator's term, which was not superseded by another cut."""

    version: int
    term: int | None


@attrs.frozen
class Pinned:
    """The only pin of an owner; `None`: released. A short pin may expire."""

    owner: str
    version: int | None
    is_short: bool = False


@attrs.frozen
class Raised:
    """The low watermark raised to a time."""

    to: int


@attrs.frozen
class Published:
    """A time published for a table's partition; `None`: removed."""

    table: int
    time: int | None


@attrs.frozen
class Jumped:
    """A wrong wall clock, by which pins may expire."""


@attrs.frozen
class Upkeep:
    """A call that changes no read."""

    kind: str


@attrs.frozen
class Settings:
    """The settings of a life of a node."""

    delay_seconds: float = 0.5
    skew_seconds: float = 0.5
    availability_seconds: float = 5.0
    chunk_bytes: int = 1024


class Opened:
    """The parts of one node, and the state of its process."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.number = world.kept["openings"] = world.kept.get("openings", 0) + 1
        self.store = world.keyed("catalog", lambda: MemoryStore(predicates="value"))
        self.clock: WorldClock = world.clock
        self.log = UpdateLog(self.store, chunk_bytes=settings.chunk_bytes, rng=Random(self.number), clock=world.clock)
        hybrid = HybridClock(world.clock, max_skew_seconds=settings.skew_seconds)
        self.service = CatalogService(self.log, hybrid, delay_seconds=settings.delay_seconds)
        self.low = LowWatermark(self.service, "A", data_availability_seconds=settings.availability_seconds)
        # A recovered low watermark is raised to this.
        self.earliest: int = self.service.history.activation(self.service.history.earliest)
        self.times = PublishedTimes(self.service, "A")
        self.owners: list[str] = []
        # Short pins, which any thread may take again.
        self.expiring: list[str] = world.kept.setdefault("expiring", [])
        self.tables: list[int] = []
        self.plan: CatalogPlan | None = None
        self.host = HostLock()

    def close(self) -> None:
        self.service.close()

    def in_time(self, call: Callable[[], AnswerT]) -> AnswerT:
        """Return the result of a call that must not wait for a wrong clock."""
        began = self.clock.monotonic()
        answer = call()
        assert self.clock.monotonic() < began + LONGEST_WAIT_SECONDS, "somebody waited for a clock that was wrong"
        return answer


class CatalogDriver(Driver[Opened]):
    """Schema changes, cuts by old and new plans, pins, the watermark and published times."""

    has_peers = True

    def settings(self) -> Sequence[Settings]:
        return [Settings(), Settings(0.0, 0.0, 0.0, 4096), Settings(30.0, 30.0, 3600.0, 1 << 20)]

    def open(self, world: World, settings: Settings) -> Opened:
        return Opened(world, settings)

    def act(self, store: Opened, rng: Random, journal: Journal) -> None:
        store.clock.advance(rng.choice([0.0, 1.0, 20.0]))
        if store.clock.off is not float:  # a hazard sets it wrong, perhaps for one reading
            with journal.trying(Jumped()):
                pass
        self._act(store, rng, journal)

    def _act(self, store: Opened, rng: Random, journal: Journal) -> None:
        kind = rng.choice(["execute", "execute", *["cut"] * 6, "pin", "pin", "move", "move", "forget", "raise",
                           "publish", "publish", "reclaim"])
        if kind == "execute" or len(store.service.history) < 2:
            for _ in range(rng.randint(1, 3)):
                self._execute(store, rng, journal)
        elif kind == "cut":
            self._execute(store, rng, journal)
            self._cut(store, rng, journal)
        elif kind in ("pin", "move", "publish", "raise"):
            with store.host:  # a host changes its names and tables on one thread
                getattr(self, f"_{kind}")(store, rng, journal)
        else:
            with journal.trying(Upkeep(kind)):
                if kind == "forget":
                    store.service.pins.release("nobody")  # each change drops the expired pins
                else:
                    store.service.reclaim()

    def _execute(self, store: Opened, rng: Random, journal: Journal) -> None:
        service = store.service
        service.poll()
        names = sorted(_schemas(service, service.history.latest))
        # Two of these exceed the size of a piece of a snapshot.
        created = tuple(f"S{rng.getrandbits(40):010x}-{number} {'x' * 200}" for number in range(rng.randint(1, 3)))
        dropped = tuple(rng.sample(names, min(len(names), rng.randrange(2))))
        commands: list[PutObject | DropObject] = [
            *(PutObject(Schema(name)) for name in created),
            *(DropObject("schema", name, if_exists=True) for name in dropped)]
        wait = rng.random() < 0.5

        def execute() -> Any:
            try:
                return service.execute(commands, wait=wait)
            except ClockSkewExceeded:
                # The log's latest version is far ahead of this clock: do not wait for the next version.
                return service.execute(commands, wait=False)

        made = self._tried(lambda: store.in_time(execute), Executed(created, dropped), journal)
        assert all(made.applied[:len(created)]), made
        with journal.trying(Version(made.version, made.activation, _schemas(service, made.version))):
            pass

    def _cut(self, store: Opened, rng: Random, journal: Journal) -> None:
        service, plan = store.service, store.plan
        store.plan = None
        if plan is None:
            service.poll()
            version = rng.randint(max(service.history.earliest, 1), service.history.latest)
            time = service.history.activation(rng.choice([version, service.history.latest]))
            store.clock.advance(10.0)
            view = service.view(reports=[NodeReport(node=NodeId("A"), transactions_from=time)],
                                topology=Topology.of("A"), low_watermark=time, term=rng.choice([None, store.number]))
            plan = service.plan(view=view)
            if rng.random() < 0.2:
                store.plan = plan  # carried out by a later act, when pins may protect the versions that it cuts
                return
            if rng.random() < 0.3:
                with store.host:
                    self._pin(store, rng, journal)
        if plan.target is not None:
            try:
                self._tried(lambda: service.compact(plan), Cut(plan.target), journal)
            except Stale:
                return  # another process has cut, pinned or taken over
            with journal.trying(Reached(plan.target, plan.view.term)):
                pass

    def _pin(self, store: Opened, rng: Random, journal: Journal) -> None:
        history = store.service.history
        version = rng.choice([rng.randint(max(history.earliest, 1), history.latest), history.latest])
        pinned = Pinned(f"pin {rng.getrandbits(40):010x}", version, rng.choice([True, False]))
        if rng.choice([False, False, True]) and store.expiring:
            pinned = Pinned(store.expiring.pop(0), version)
        try:
            self._tried(lambda: store.service.pins.pin(
                pinned.owner, version, history, ttl_seconds=1.0 if pinned.is_short else LONG), pinned, journal)
        except CompactlibError:
            # Another process may have cut the version away.
            store.service.poll()
            if store.service.history.has(version):
                raise
        else:
            (store.expiring if pinned.is_short else store.owners).append(pinned.owner)

    def _move(self, store: Opened, rng: Random, journal: Journal) -> None:
        """Move a pin to a later version, or release it."""
        service = store.service
        if not store.owners:
            self._pin(store, rng, journal)
            return
        owner, kind = rng.choice(store.owners), rng.choice(["moved", "moved", "released"])
        if kind == "moved":
            latest = service.history.latest
            self._tried(lambda: service.pins.pin(
                owner, latest, service.history, ttl_seconds=LONG), Pinned(owner, latest), journal)
        else:
            store.owners.remove(owner)
            self._tried(lambda: service.pins.release(owner), Pinned(owner, None), journal)

    def _raise(self, store: Opened, rng: Random, journal: Journal) -> None:
        to = store.low.candidate()
        if to is not None:
            self._tried(lambda: store.low.advance(to), Raised(to), journal)

    def _publish(self, store: Opened, rng: Random, journal: Journal) -> None:
        times = store.times
        if store.tables and rng.random() < 0.3:
            table = store.tables.pop()
            self._tried(lambda: times.remove(table, 0, 1), Published(table, None), journal)
            return
        table = rng.choice([SHARED_TABLE, SHARED_TABLE, 10 + rng.getrandbits(20)])
        times.register(table, 0, **LIFE)
        time = LIFE["created_at"] + 100 + rng.getrandbits(20)
        self._tried(lambda: times.publish(table, 0, 1, time), Published(table, time), journal)
        store.tables += [] if table == SHARED_TABLE else [table]

    def _tried(self, call: Callable[[], AnswerT], change: object, journal: Journal) -> AnswerT:
        try:
            with journal.trying(change):
                return call()
        except CompactlibError as error:
            if not isinstance(error, OutcomeUnknown):
                with journal.trying(Denied(change)):
                    pass
            raise

    def check(self, store: Opened, journal: Journal, *, damage: str) -> None:
        service = store.service
        service.poll()
        changes = standing(journal)
        self._check_history(service, changes)
        newest = max((cut.term or 0 for cut in _of(changes, Reached)), default=0)
        assert store.log.state().term >= newest, f"the term is lower than {newest}, in which history was cut"
        self._check_pins(service, changes)
        self._check_times(store, changes)
        report = service.verify()
        assert report.is_sound, str(report)
        service.audit()

    def _check_history(self, service: CatalogService, changes: Sequence[Change]) -> None:
        history, versions = service.history, _of(changes, Version)
        assert history.latest >= max((version.number for version in versions), default=0), "versions are gone"
        done = max((cut.version for cut in _of(changes, Reached)), default=0)
        cuts = max((cut.version for cut in _of(changes, Cut)), default=0)
        assert done <= history.earliest <= cuts, f"{history}, expected a history from {done} to {cuts} on"
        for version in versions:
            if version.number >= history.earliest:
                found = service.catalog(version.number)
                assert (found.activation, _schemas(service, version.number)) == (
                    version.activation, version.schemas), f"version {version.number} is another one now"
                assert service.history.at(found.activation).version == version.number
        there = _schemas(service, history.latest)
        tried = _of(changes, Executed)
        assert there <= {name for one in tried for name in one.created}, "there is what nobody created"
        maybe_dropped = {name for one in tried for name in one.dropped}
        for change in changes:
            if isinstance(change.what, Executed):
                created, left = set(change.what.created), set(change.what.created) - maybe_dropped
                assert left <= there or (not change.acknowledged and not created & there), f"half of {created}"
                assert not change.acknowledged or not there & set(change.what.dropped), "a dropped schema is back"

    def _check_pins(self, service: CatalogService, changes: Sequence[Change]) -> None:
        has_jumped = bool(_of(changes, Jumped))
        allowed = dict[str, set[int | None]]()
        for change in changes:
            if isinstance(change.what, Pinned):
                before = allowed.get(change.what.owner, {None})
                allowed[change.what.owner] = {change.what.version} | (set() if change.acknowledged else before)
                if change.what.is_short or has_jumped:
                    allowed[change.what.owner].add(None)
        held = {pin.owner: pin.version for pin in (service.pins.state().value or {}).values()}
        active = {pin.owner for pin in service.pins.active()}
        assert held.keys() <= allowed.keys(), f"nobody has taken {held.keys() - allowed.keys()}"
        for owner, versions in allowed.items():
            assert held.get(owner) in versions, f"{owner} holds {held.get(owner)}, expected one of {versions}"
            if None not in versions:
                assert owner in active, f"the pin of {owner} has expired"
                assert service.history.has(held[owner]), f"version {held[owner]} was cut, {owner} holds it"

    def _check_times(self, store: Opened, changes: Sequence[Change]) -> None:
        raised = {change.what.to: change.acknowledged for change in changes if isinstance(change.what, Raised)}
        found = store.low.value.time
        lowest = max((time for time, acknowledged in raised.items() if acknowledged), default=0)
        assert found in {*raised, store.earliest} or (found is None and not lowest), \
            f"the low watermark is {found}: {raised}"
        assert (found or 0) >= lowest, f"the low watermark is {found}, and was {lowest}"
        for table in {one.table for one in _of(changes, Published)}:
            ours = [change for change in changes if isinstance(change.what, Published) and change.what.table == table]
            lowest = max((one.what.time or 0 for one in ours if one.acknowledged), default=0)
            allowed = {one.what.time for one in ours if one.what.time and one.what.time >= lowest}
            removed = [one.acknowledged for one in ours if one.what.time is None]
            if removed or not lowest:
                allowed = {LIFE["created_at"]} | (set() if any(removed) else allowed)
            time = store.times.register(table, 0, **LIFE)
            assert time in allowed, f"table {table} has published {time}, expected one of {allowed}"


KindT = TypeVar("KindT")


def _of(changes: Iterable[Change], kind: type[KindT]) -> list[KindT]:
    return [change.what for change in changes if isinstance(change.what, kind)]


def _schemas(service: CatalogService, version: int) -> frozenset[str]:
    return frozenset(schema.name for schema in service.catalog(version).schemas.values())
