# SPDX-License-Identifier: Apache-2.0
"""A catalog that is opened again and again with other settings, by two nodes at once, while clocks jump and the store
loses answers.

What was executed, pinned and published under one opening holds under the next.
"""

from __future__ import annotations

import random
from typing import Any

import attrs

from compactlib.catalog import CatalogService, HybridClock, LowWatermark, PublishedTimes, UpdateLog
from compactlib.catalog.errors import CommandRefused, PinExpired
from compactlib.catalog.model.timestamp import physical_ms
from compactlib.catalog.schema.catalog import EMPTY, Catalog
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.kv import MemoryStore, OutcomeUnknown
from compactlib.outcome import Done, Failed
from tests.catalog.log.test_catalog_any_history import any_command
from tests.catalog.services import plan_to
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation

OWNERS = ("ann", "bob")
PARTITIONS = range(3)
_TABLE = 1 << 20


class Limited(MemoryStore):
    """A store whose limits each opening sets anew, and which are kept to."""

    most = 100

    @property
    def limits(self) -> Any:
        return attrs.evolve(super().limits, max_transact=self.most, max_get_many=self.most)

    def transact(self, conditions: Any = (), puts: Any = (), deletes: Any = ()) -> None:
        assert len(conditions) + len(list(puts)) + len(list(deletes)) <= self.most
        super().transact(conditions, puts, deletes)


@attrs.define
class Held:
    """A pin that was granted: which version, and until when by a clock that is wrong for a moment at most."""

    version: int
    until: float


class OpeningWorld:
    """One life, drawn from a seed.

    Attributes:
        story: what was done, in order.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = Limited(page_size=self.rng.choice([1, 3, 1000]))
        self.clock = ManualClock(1_000_000.0)
        self.offset = 0.0
        self.latest = 0.0
        self.story: list[str] = []
        self.known: dict[int, Catalog] = {0: EMPTY}
        self.pins: dict[str, Held] = {}
        self.watermark = 0
        self.published: dict[int, int] = {}
        self._fault_rate = 0.0
        self.open()
        self.execute(self.nodes[0])

    def live(self, openings: int, steps: int) -> None:
        for _ in range(openings):
            self.open()
            self.check_all()
            for _ in range(self.rng.randrange(1, steps)):
                self.step()
                self.check()

    # --- openings

    def open(self) -> None:
        self.store.most = self.rng.choice([8, 9, 16, 100])
        if self.rng.random() < 0.3:
            # The clock stands elsewhere than it did, or is right again.
            self._set_offset(self.rng.choice([0.0, 0.0, -3600.0, 3600.0, 90_000.0]))
        self.nodes = [self._opened() for _ in range(2)]
        self.low = LowWatermark(self.store, "A", self.nodes[0].clock,
                                data_availability_seconds=self.rng.choice([0, 50]))
        self.times = PublishedTimes(self.store, "A", clock=self.clock)
        for partition in PARTITIONS:
            found = self.times.register(_TABLE, partition, incarnation=1, created_at=5)
            assert found >= self.published.get(partition, 5)
            self.published[partition] = found
        assert (self.low.value.time or 0) >= self.watermark

    def _set_offset(self, offset: float) -> None:
        self.story.append(f"the clock is off by {offset}")
        self.clock.set_now(self.clock.now() - self.offset + offset)
        self.offset = offset

    def _opened(self) -> CatalogService:
        rng = self.rng
        log = UpdateLog(FaultyStore(self.store, self._choose), chunk_bytes=rng.choice([1024, 2000, 1 << 18]),
                        rng=random.Random(rng.getrandbits(64)), clock=self.clock)
        self.story.append(f"open with {self.store.most}")
        hybrid = HybridClock(self.clock, max_skew_seconds=rng.choice([0, 0.5, 5.0]))
        return CatalogService(log, hybrid, delay_seconds=rng.choice([0, 0.5, 30.0]))

    def _choose(self, operation: KVOperation) -> KVFault | None:
        if self.rng.random() < self._fault_rate:
            return self.rng.choice([KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.FAIL, KVFault.SLOW_DOWN,
                                    KVFault.CONFLICT])
        return None

    # --- looking

    def check_all(self) -> None:
        for node in self.nodes:
            node.poll()
            node.audit()
            report = node.verify()
            assert report.is_sound, report
            history = node.history
            assert history.latest == max(self.known)
            for version in self.rng.sample(range(history.earliest, history.latest + 1), len(history)):
                assert history.catalog(version) == self.known[version]
                assert history.catalog(version).descriptors() == self.known[version].descriptors()
        self.check()

    def check(self) -> None:
        node = self.rng.choice(self.nodes)
        node.poll()
        assert node.history.latest == max(self.known)
        self.latest = max(self.latest, self.clock.now())
        for owner, pin in self.pins.items():
            if self.latest < pin.until:
                assert node.history.earliest <= pin.version, (owner, pin)
                assert owner in {one.owner for one in node.pins.active()}
        assert (self.low.value.time or 0) >= self.watermark

    # --- operations

    def step(self) -> None:
        work = self.rng.choice([self.execute] * 6 + [self.cut] * 4 + [self.pin] * 3 + [self.renew] * 2 + [
            self.release, self.forget, self.jump, self.wait, self.wait, self.wait, self.reclaim, self.rise,
            self.publish])
        self.story.append(work.__name__)
        self._fault_rate = self.rng.choice([0.0, 0.0, 0.15])
        try:
            work(self.rng.choice(self.nodes))
        except CompactlibError as error:
            self.story.append(f"  {error!r:.200}")
        finally:
            self._fault_rate = 0.0

    def execute(self, node: CatalogService) -> None:
        for _ in range(self.rng.choice([1, 3])):
            latest = self.known[max(self.known)]
            try:
                node.execute([any_command(self.rng, latest) for _ in range(self.rng.choice([1, 3]))], wait=False)
            except CommandRefused:
                continue
            except OutcomeUnknown:
                pass
            finally:
                self._fault_rate = 0.0
                node.poll()
                now = node.history.catalog(node.history.latest)
                assert now.version - latest.version in (0, 1)
                self.known.setdefault(now.version, now)

    def cut(self, node: CatalogService) -> None:
        rate, self._fault_rate = self._fault_rate, 0.0
        node.poll()
        versions = [one for one in range(node.history.earliest, node.history.latest + 1)
                    if physical_ms(node.history.activation(one)) <= self.clock.now() * 1000]
        if not versions:
            return
        plan = plan_to(node, self.rng.choice(versions))
        if self.rng.random() < 0.3:
            # Meanwhile another node takes a pin, or executes.
            self.rng.choice([self.pin, self.execute])(self.rng.choice(self.nodes))
        self._fault_rate = rate
        outcome = node.compact(plan)
        self.story.append(f"  {outcome!r:.200}")
        assert rate or not isinstance(outcome, Failed) or outcome.changed == "no"
        if isinstance(outcome, Done):
            self._fault_rate = 0.0
            node.poll()
            assert node.history.earliest >= (plan.target or 0)

    def pin(self, node: CatalogService) -> None:
        owner, ttl = self.rng.choice(OWNERS), self.rng.choice([10.0, 1000.0, 1e6])
        rate, self._fault_rate = self._fault_rate, 0.0
        node.poll()
        version = self.rng.randint(node.history.earliest, node.history.latest)
        self._fault_rate = rate
        try:
            node.pins.pin(owner, version, node.history, ttl_seconds=ttl)
        except CompactlibError:
            self.pins.pop(owner, None)
            raise
        self.pins[owner] = Held(version, self.clock.now() + ttl)

    def renew(self, node: CatalogService) -> None:
        owner, ttl = self.rng.choice(OWNERS), self.rng.choice([10.0, 1000.0])
        before = self.pins.pop(owner, None)
        try:
            pin = node.pins.renew(owner, ttl_seconds=ttl)
        except PinExpired:
            assert before is None or before.until <= max(self.latest, self.clock.now())
            raise
        assert before is None or pin.version == before.version
        self.pins[owner] = Held(pin.version, self.clock.now() + ttl)

    def release(self, node: CatalogService) -> None:
        owner = self.rng.choice(OWNERS)
        self.pins.pop(owner, None)
        node.pins.release(owner)

    def forget(self, node: CatalogService) -> None:
        node.pins.forget_expired()

    def reclaim(self, node: CatalogService) -> None:
        node.reclaim()

    def rise(self, node: CatalogService) -> None:
        outcome = self.low.advance()
        self.watermark = max(self.watermark, self.low.value.time or 0)
        self.story.append(f"  {outcome!r:.100}")

    def publish(self, node: CatalogService) -> None:
        partition, time = self.rng.choice(PARTITIONS), self.rng.randrange(1, 1 << 30)
        self.times.publish(_TABLE, partition, 1, time)
        found = self.times.published(_TABLE, partition)
        assert found is not None
        assert found >= max(self.published[partition], time)
        self.published[partition] = found

    def jump(self, node: CatalogService) -> None:
        """The clock goes wrong for one reading, by so much that it is noticed."""
        before = self.offset
        self._set_offset(before + self.rng.choice([-90_000.0, 90_000.0, 400 * 86_400.0]))
        try:
            self.rng.choice([self.forget, self.rise, self.renew, self.cut])(node)
        except CompactlibError as error:
            self.story.append(f"  {error!r:.200}")
        finally:
            self._fault_rate = 0.0
            self._set_offset(before)

    def wait(self, node: CatalogService) -> None:
        self.clock.advance(self.rng.choice([0.1, 1.0, 40.0, 500.0]))
