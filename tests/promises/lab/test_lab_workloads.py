# SPDX-License-Identifier: Apache-2.0
"""Workloads: the same seed gives the same operations, and they are what their settings say."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from compactlib.errors import InvalidInput
from compactlib.lab import Arrivals, Bursts, Expiring, HotCold, Uniform, WithReads, Workload, Zipf

DELETE, READ, FOREVER = 1, 2, -1

ALL = [Uniform(keys=500, writes=3_000), HotCold(keys=500, writes=3_000), Zipf(keys=500, writes=3_000),
       Bursts(keys=500, writes=3_000, every=1_000, burst_keys=100),
       Expiring(keys=500, writes=3_000), Arrivals(blocks=500, burst=3),
       Uniform(keys=500, writes=3_000, spread=0.5, record_bytes=40)]


def rows(workload: Workload, seed: int = 3) -> list[tuple[int, int, int, int, int]]:
    return list(workload.rows(seed))


@pytest.mark.parametrize("workload", ALL, ids=str)
def test_a_seed_gives_one_history_with_ascending_times(workload: Workload) -> None:
    told = rows(workload)
    assert all(rows(workload) == told for _ in range(9))
    assert rows(workload, seed=4) != told
    assert len(told) == workload.operations
    times = [at for *_, at in told]
    assert times == sorted(times)
    assert {key for _, key, *_ in told} == set(range(500))


def test_hot_keys_get_their_share() -> None:
    counts = Counter(key < 100 for _, key, *_ in rows(HotCold(keys=1_000, writes=20_000))[1_000:])
    assert counts[True] / 20_000 == pytest.approx(0.9, abs=0.01)


def test_the_most_popular_key_of_zipf_gets_the_share_of_the_law() -> None:
    counts = Counter(key for _, key, *_ in rows(Zipf(keys=100, writes=20_000))[100:])
    whole = sum(1 / rank for rank in range(1, 101))
    first, second = (count for _, count in counts.most_common(2))
    assert first / 20_000 == pytest.approx(1 / whole, rel=0.1)
    assert first / second == pytest.approx(2, rel=0.15)


def test_uniform_writes_touch_all_keys_alike() -> None:
    counts = Counter(key for _, key, *_ in rows(Uniform(keys=10, writes=20_000))[10:])
    assert all(count == pytest.approx(2_000, rel=0.1) for count in counts.values())


@pytest.mark.parametrize("share", [0.0, 0.2, 0.8])
def test_containers_share_a_time_to_live(share: float) -> None:
    workload = Expiring(keys=2_000, writes=20_000, share=share, containers=10)
    lives: dict[int, list[int]] = {}
    for _, key, _, life, _ in workload.rows(3):
        lives.setdefault(key // 200, []).append(life)
    mortal = {owner: [life for life in each if life != FOREVER] for owner, each in lives.items()}
    parts = [len(mortal[owner]) / len(lives[owner]) for owner in lives]
    longest = [max(each) / min(each) for each in mortal.values() if each]
    assert sorted(parts) == [0.0] * round(10 * (1 - share)) + [1.0] * round(10 * share)
    assert all(each <= 3.1 for each in longest)


def test_a_burst_deletes_a_range_of_neighbours() -> None:
    told = rows(Bursts(keys=500, writes=2_000, every=1_000, burst_keys=100))
    gone = [key for kind, key, *_ in told if kind == DELETE]
    assert len(gone) == 200
    assert all((after - before) % 500 == 1 for before, after in itertools.pairwise(gone[:100]))


def test_sizes_spread_around_the_middle() -> None:
    sizes = {size for _, _, size, _, _ in rows(Uniform(keys=10, writes=2_000, record_bytes=100, spread=0.5))}
    assert 50 <= min(sizes) < 60
    assert 140 < max(sizes) <= 150


def test_reads_are_interleaved_and_change_no_write() -> None:
    plain = Bursts(keys=500, writes=3_000, every=1_000, burst_keys=100)
    told = list(WithReads(of=plain, reads=0.25).rows(3))
    assert [row for row in told if row[0] != READ] == rows(plain)
    count = sum(row[0] == READ for row in told)
    assert count / len(told) == pytest.approx(0.25, abs=0.001)
    assert len(told) == pytest.approx(WithReads(of=plain, reads=0.25).operations, abs=1)
    assert all(key < 500 for kind, key, *_ in told if kind == READ)
    assert list(WithReads(of=plain, reads=0.25).rows(3)) == told


@pytest.mark.parametrize("make", [
    lambda: WithReads(of=Uniform(keys=1, writes=1), reads=1.0),
    lambda: Uniform(keys=0, writes=1), lambda: Uniform(keys=1, writes=-1), lambda: Uniform(keys=1, writes=1, spread=2),
    lambda: HotCold(keys=10, writes=1, hot_keys=0.0), lambda: Zipf(keys=1, writes=1, exponent=0),
    lambda: Expiring(keys=10, writes=1, containers=11), lambda: Expiring(keys=10, writes=1, shortest_seconds=31.0),
    lambda: Uniform(keys=1, writes=1, record_bytes=1 << 31),
    lambda: Expiring(keys=1, writes=1, longest_seconds=1e300),
    lambda: Bursts(keys=10, writes=1, burst_keys=11), lambda: Arrivals(per_second=0.0),
])
def test_settings_out_of_range_are_refused(make: object) -> None:
    with pytest.raises(InvalidInput):
        make()  # type: ignore[operator]
