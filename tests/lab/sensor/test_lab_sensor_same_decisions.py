# SPDX-License-Identifier: Apache-2.0
"""A sensor triggers in the lab when the real one does: a branch of keys and a real branch live through one history."""

from __future__ import annotations

from random import Random

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore
from compactlib.lab import SensorSettings
from compactlib.lab.sensor.replay import SensorReplay
from compactlib.lab.traces.operations import DELETE, PUT, READ
from compactlib.objects import MemoryObjects
from compactlib.outcome import Done
from compactlib.runtime import RecordingObserver
from compactlib.staging import (
    AlwaysPolicy,
    AnyOf,
    CommittedRanges,
    CompactionSensor,
    DeletesPolicy,
    ListingCostPolicy,
    Repository,
    SealedTokensPolicy,
    StagingWorker,
)
from compactlib.staging.compaction.outcome import PutOff
from compactlib.staging.compaction.sense_policies import SensePolicy

KEYS, BASE, PAGE = 60, 40, 7


def key_of(number: int) -> bytes:
    return b"%03d" % number


@pytest.mark.parametrize("window", [0.0, 60.0])
@pytest.mark.parametrize("policy", [
    DeletesPolicy(1), DeletesPolicy(9), ListingCostPolicy(20),
    AnyOf((DeletesPolicy(15), SealedTokensPolicy(3), ListingCostPolicy(30))),
], ids=str)
def test_a_trigger_in_the_lab_is_the_real_sensors_own(policy: SensePolicy, window: float) -> None:
    random = Random(str(policy))
    clock = ManualClock(1_700_000_000.0)
    sensor = CompactionSensor(policy)
    repo = Repository(MemoryStore(), CommittedRanges(MemoryObjects(clock=clock)), name="lab", clock=clock,
                      policy=AlwaysPolicy(window_seconds=window), rng=Random(1), events=sensor.events("lab"))
    main = repo.create_branch("main")
    main.put_many({key_of(number): b"v" for number in range(BASE)})
    main.commit("what was there before")
    replay = SensorReplay(policy, SensorSettings(page_keys=PAGE, base_keys=BASE, window_seconds=window))
    outcomes: list[object] = []
    observer = RecordingObserver()
    worker = StagingWorker(sensor, [repo], reclaim_seconds=None, surveys=False, clock=clock, observer=observer)
    for step in range(700):
        kind, key = random.choice((PUT, DELETE, DELETE, READ)), random.randrange(KEYS)
        if kind == PUT:
            main.put(key_of(key), b"w")
        elif kind == DELETE:
            main.delete(key_of(key))
        else:
            main.list(after=key_of(key - 1) if key else None, limit=PAGE)
        outcomes += worker.run_pending()
        mine = replay.make(kind, key, 1, round(clock.now() * 1000))
        assert [mine] == ([fields["why"] for _, fields in observer.events] or [None]), f"step {step}"
        observer.events.clear()
        assert replay.branch.sensor.pressure("lab", "main") == sensor.pressure("lab", "main"), f"step {step}"
        replay.branch.audit()
        clock.advance(1)
    total = replay.report("").total
    assert total.compactions == sum(isinstance(outcome, Done) for outcome in outcomes) >= 5
    assert total.throttled == sum(isinstance(outcome, PutOff) for outcome in outcomes)
    assert (total.throttled > 0) == (window > 0)
    assert [record.key for record in main.list(limit=KEYS).entries] == [key_of(key) for key in replay.branch.live_keys]
