# SPDX-License-Identifier: Apache-2.0
"""A decision in the lab is the decision of a real store: both are run on one history, and everything is compared."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from compactlib.blobstore import (
    BlobChoice,
    BlobPolicy,
    BlobStore,
    BlobStoreConfig,
    BlobView,
    CompactAll,
    CostBenefit,
    Greedy,
    Hybrid,
    StatsBased,
)
from compactlib.blobstore.policy import Survivor
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.lab import BlobLogModel
from compactlib.lab.policies import ByEnd, DChoices, DecliningCost

PUT, DELETE, FOREVER = 0, 1, -1
_GATE: dict[str, Any] = {"min_used_fraction": 0.3}
_START = 1_700_000_000


class BothWorlds:
    """A real store, and a log of numbers, with the same operations."""

    def __init__(self, folder: Path, policy: BlobPolicy, *, retention: float,
                 placement: Any = None, replaces: bool = False) -> None:
        self.config = BlobStoreConfig(
            capacity_bytes=40 * 4096, segment_bytes=4096, durability="interval", journal_max_entries=0,
            max_blob_bytes=0, deleted_retention_seconds=retention, compaction_bytes_per_second=None)
        self.clock = ManualClock(_START)
        self.classes: set[int] = set()

        def place(record: Survivor) -> int:
            found: int = placement(record)
            self.classes.add(found)
            return found

        self.store = BlobStore(folder / "store", self.config, policy=policy, clock=self.clock,
                               place=None if placement is None else place)
        # A replaced record leaves no tombstone, and a put of a known key is of an id with a history.
        self.replaces = replaces
        looks_ahead = getattr(policy, "needs_forecast", False)
        self.log = BlobLogModel.of_store(
            self.config, id_bytes=8, min_free_segments=0, survivors=placement,
            forecast_seconds=7 * 86_400 * looks_ahead, **{"tombstone_bytes": 0} if replaces else {}).start(policy)
        # The lab begins with the first operation, a store before it.
        self.log.name, self.log.last_full_at = self.store.name, self.store.view().last_full_at
        self.versions: dict[int, int] = {}
        self.written = 0

    def now_ms(self) -> int:
        return round(self.clock.now() * 1000)

    def tell(self, kind: int, key: int, size: int = 0, life_ms: int = FOREVER) -> None:
        self.log.apply([(kind, key, size, life_ms, self.now_ms())])

    def put(self, key: int, size: int, life_ms: int) -> None:
        before = self.versions.get(key)
        if self.replaces:
            self.store.put(b"%08d" % key, bytes(size), replace=True,
                           ttl_seconds=None if life_ms == FOREVER else life_ms / 1000)
            self.tell(PUT, key, size, life_ms)
            return
        self.written += 1
        self.versions[key] = self.written
        self.store.put(b"%08d" % self.written, bytes(size), ttl_seconds=None if life_ms == FOREVER else life_ms / 1000)
        self._delete(before)
        self.tell(PUT, key, size, life_ms)

    def _delete(self, version: int | None) -> None:
        blob = None if version is None else b"%08d" % version
        if blob is not None and type(self.store.info(blob)).__name__ == "BlobInfo":
            self.store.delete(blob)

    def delete(self, key: int) -> None:
        self._delete(self.versions.pop(key, None))
        self.tell(DELETE, key)

    def settle(self) -> None:
        """Step to the next eighth of a second: the store pauses for breath now and then, by this clock."""
        self.clock.advance(math.ceil(self.clock.now() * 8) / 8 - self.clock.now())

    def decide(self) -> BlobChoice:
        self.settle()
        self.log.advance(self.now_ms())
        view = self.store.view()
        assert shared(self.log.view()) == shared(view)
        plan = self.store.plan(view=view)
        if not plan.is_empty:
            self.store.compact(plan)
        choice = self.log.compact()
        assert (choice.victims, choice.why, choice.kind) == (plan.names, plan.why, plan.kind)
        self.settle()
        return choice


def shared(view: BlobView) -> BlobView:
    """Return the state that the lab has, too: without files."""
    return attrs.evolve(view, incarnation=b"", segments=tuple(attrs.evolve(each, disk_bytes=None)
                                                              for each in view.segments))


@pytest.mark.parametrize(("policy", "retention"), [
    (StatsBased(**_GATE), 0.0),
    (StatsBased(**_GATE, min_reclaimed_segments=2), 5.0),
    (Greedy(**_GATE), 0.0),
    (Greedy(**_GATE, min_reclaimed_segments=2), 3.0),
    (CostBenefit(**_GATE), 0.0),
    (CostBenefit(**_GATE, min_reclaimed_segments=3), 0.0),
    (Greedy(**_GATE, min_reclaimed_segments=3), 2.0),
    (DChoices(**_GATE, min_reclaimed_segments=3, seed=3), 0.0),
    (Hybrid(usual=StatsBased(**_GATE), every_seconds=30.0), 0.0),
    (CompactAll(**_GATE, skip_valid=True), 2.0),
    (DecliningCost(**_GATE, min_reclaimed_segments=2), 4.0),
    (DecliningCost(**_GATE, decline=0.5), 0.0),
    (StatsBased(**_GATE), 11.0),
], ids=lambda value: getattr(value, "name", str(value)))
def test_a_decision_in_the_lab_equals_the_stores(tmp_path: Path, policy: BlobPolicy, retention: float) -> None:
    random = Random(f"{policy.name} {retention}")
    both = BothWorlds(tmp_path, policy, retention=retention)
    carried_out = 0
    with both.store:
        for number in range(450):
            both.clock.advance(random.choice((0, 0.125, 0.125, 0.25)))
            key = random.randrange(60)
            if random.random() < 0.1:
                both.delete(key)
            else:
                both.put(key, random.randrange(1, 400), random.choice((FOREVER, FOREVER, 560, 8_060, 60_060)))
            if number % 25 == 24:
                carried_out += not both.decide().is_empty
    assert carried_out >= 4


@pytest.mark.parametrize("placement", [ByEnd(step=1.2), ByEnd(step=2.0)], ids=str)
@pytest.mark.parametrize(("policy", "retention"), [
    (Greedy(**_GATE, min_reclaimed_segments=4), 0.0),
    pytest.param(Greedy(**_GATE, min_reclaimed_segments=4), 3.0, marks=pytest.mark.soak),
    pytest.param(DecliningCost(**_GATE, min_reclaimed_segments=4), 0.0, marks=pytest.mark.soak),
    (DecliningCost(**_GATE, min_reclaimed_segments=2), 1.0),
], ids=lambda value: getattr(value, "name", str(value)))
def test_survivors_have_equal_places_in_the_lab_and_a_store(tmp_path: Path, placement: ByEnd,
                                                            policy: BlobPolicy, retention: float) -> None:
    random = Random(f"{placement}")
    both = BothWorlds(tmp_path, policy, retention=retention, placement=placement)
    with both.store:
        for number in range(500):
            both.clock.advance(random.choice((0, 0.125, 0.125, 0.25)))
            key = random.randrange(60)
            if random.random() < 0.1:
                both.delete(key)
            else:
                both.put(key, random.randrange(1, 400), random.choice((FOREVER, FOREVER, 8_060, 60_060)))
            if number % 25 == 24:
                both.decide()
    assert len(both.classes) >= 4


@attrs.frozen
class ByHistory:
    """A scheme that gives each record a class by all that is known of its id."""

    told: set[tuple[int, ...]] = attrs.field(factory=set)
    name: str = "by_history"

    def __call__(self, record: Survivor) -> int:
        self.told.add((record.written_ms, *sorted(record.earlier_ms)))
        return sum(record.earlier_ms) % 7 + 7 * len(record.earlier_ms)


@pytest.mark.parametrize("placement", [ByEnd(step=1.2), ByHistory()], ids=lambda value: value.name)
@pytest.mark.parametrize("policy", [
    Greedy(**_GATE, min_reclaimed_segments=4),
    CostBenefit(**_GATE, min_reclaimed_segments=2),
], ids=lambda value: getattr(value, "name", str(value)))
def test_rewritten_keys_have_equal_places_in_the_lab_and_a_store(tmp_path: Path, placement: Any,
                                                                 policy: BlobPolicy) -> None:
    random = Random(f"{placement.name}")
    both = BothWorlds(tmp_path, policy, retention=0.0, placement=placement, replaces=True)
    with both.store:
        for number in range(600):
            both.clock.advance(random.choice((0.125, 0.25)))
            # Few keys are put often. A blob that expires would stay, in a store, as long as one that it has replaced.
            both.put(int(60 * random.random() ** 2), random.randrange(1, 400), FOREVER)
            if number % 25 == 24:
                # A replaced record is dead at once in a store, in the lab a millisecond later.
                both.clock.advance(0.125)
                both.decide()
    assert len(both.classes) >= 4
    if isinstance(placement, ByHistory):
        assert max(map(len, placement.told)) >= 4


@attrs.frozen
class Nowhere:
    """A scheme that gives no class."""

    name: str = "nowhere"

    def __call__(self, record: Survivor) -> Any:
        return self.name


def test_a_class_that_cannot_be_is_refused_in_the_lab_as_in_a_store(tmp_path: Path) -> None:
    policy = Greedy(**_GATE, min_reclaimed_segments=4)
    both = BothWorlds(tmp_path, policy, retention=0.0, placement=Nowhere())
    with both.store:
        for number in range(200):
            both.clock.advance(0.125)
            both.put(number if number % 3 else 0, 300, FOREVER)
        both.settle()
        for check in (both.store.compact, both.log.compact):
            with pytest.raises(InvalidInput, match=r"gave .*'nowhere' .*Survivor"):
                check()


def test_a_policy_that_draws_draws_the_same_in_the_lab(tmp_path: Path) -> None:
    policy = DChoices(seed=5, choices=2, **_GATE)
    both = BothWorlds(tmp_path, policy, retention=0.0)
    plans = 0
    with both.store:
        for number in range(400):
            both.clock.advance(0.125)
            both.put(number % 37, 100 + number % 300, FOREVER)
            if number % 20 == 19:
                plans += not both.decide().is_empty
    assert plans >= 3


def test_history_of_a_record_ends_where_its_predecessors_were_dropped() -> None:
    """Key 0 is put three times into the first segment, which is compacted, and its output once more."""
    placement = ByHistory()
    log = BlobLogModel.of_slots(8, 4, survivors=placement).start(Greedy())
    log.apply([(PUT, key, 1, FOREVER, time) for time, key in enumerate([0, 0, 0, 1, 2, 3, 4, 5, 6])])
    for expected in ({(2, 0, 1), (3,)}, {(2,), (3,)}):
        placement.told.clear()
        log.advance(100)
        log.rewrite(BlobChoice([log.view().segments[0].name], why="the first"))
        assert placement.told == expected
