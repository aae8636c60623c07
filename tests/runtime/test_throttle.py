# SPDX-License-Identifier: Apache-2.0
"""`throttle`: the rate holds over every span, nobody starves, and waiting is paid exactly."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given, strategies as st

from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.runtime import Throttle
from compactlib.runtime.throttle import Reservation, TokenBucket


class DrowsyClock(ManualClock):
    """Its sleep returns after half of the time, as an interrupted system call may."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds / 2 if seconds > 1e-6 else seconds)


def test_a_full_bucket_lets_its_burst_go_at_once_and_makes_the_next_wait() -> None:
    bucket = TokenBucket(bytes_per_second=100, burst_bytes=10, level=10, at=0)
    bucket, wait = bucket.take(10, 0)
    assert (bucket.level, wait) == (0, 0)
    bucket, wait = bucket.take(50, 0)
    assert (bucket.level, wait) == (-50, 0.5)


def test_a_bucket_refills_with_time_up_to_its_burst() -> None:
    empty = TokenBucket(bytes_per_second=100, burst_bytes=10, level=0, at=0)
    assert empty.take(0, 0.05)[0].level == 5
    assert empty.take(0, 1000)[0].level == 10


def test_a_request_larger_than_the_burst_is_granted_whole() -> None:
    bucket, wait = TokenBucket(100, 10, 10, 0).take(1010, 0)
    assert wait == 10
    assert bucket.take(0, 10)[0].level == 0


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    bucket = TokenBucket(100, 10, 0, at=50).take(0, 40)[0]
    assert (bucket.level, bucket.at) == (0, 50)


def test_what_is_given_back_never_exceeds_the_burst() -> None:
    bucket = TokenBucket(100, 10, 5, 0)
    assert bucket.give_back(3).level == 8
    assert bucket.give_back(1000).level == 10


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_impossible_rates_and_bursts_are_refused(rate: float) -> None:
    for make in (lambda: Throttle(rate), lambda: Throttle(1, burst_bytes=rate), lambda: TokenBucket(rate, 1, 0, 0)):
        with pytest.raises(InvalidInput, match="positive"):
            make()


@pytest.mark.parametrize("saved", [-1, 11, math.nan])
def test_no_more_can_be_saved_up_than_the_burst(saved: float) -> None:
    with pytest.raises(InvalidInput, match="between 0 and the burst"):
        Throttle(100, burst_bytes=10, saved_bytes=saved)


def test_negative_sizes_are_refused() -> None:
    throttle = Throttle(100, clock=ManualClock())
    with pytest.raises(InvalidInput, match="-1 bytes"):
        throttle.take(-1)
    with pytest.raises(InvalidInput, match="-1 bytes"):
        throttle.reserve(-1)


def test_take_waits_on_the_clock_it_was_given() -> None:
    clock = ManualClock()
    throttle = Throttle(1000, burst_bytes=100, clock=clock)
    assert throttle.take(100) == 0
    assert throttle.take(500) == pytest.approx(0.5)
    assert clock.monotonic() == pytest.approx(0.5)
    assert throttle.bytes_per_second == 1000
    assert repr(throttle) == "Throttle(1000 B/s)"


def test_a_throttle_that_starts_empty_makes_the_first_wait() -> None:
    clock = ManualClock()
    Throttle(1000, saved_bytes=0, clock=clock).take(100)
    assert clock.monotonic() == pytest.approx(0.1)


def test_a_sleep_that_returns_early_is_repeated() -> None:
    clock = DrowsyClock()
    throttle = Throttle(10, burst_bytes=1, clock=clock)
    throttle.take(101)
    assert clock.monotonic() >= 10


def test_a_reservation_tells_when_and_can_be_given_back() -> None:
    clock = ManualClock()
    throttle = Throttle(100, burst_bytes=10, clock=clock)
    first, second = throttle.reserve(110), throttle.reserve(100)
    assert [first.due, second.due] == pytest.approx([1, 2])
    throttle.give_back(second)
    throttle.give_back(first)
    assert throttle.reserve(10).due == 0
    assert clock.monotonic() == 0


def test_who_waits_behind_bytes_that_are_given_back_waits_less_and_pays_all_the_same() -> None:
    clock = ManualClock()
    throttle = Throttle(100, burst_bytes=10, clock=clock)
    large, second, third = throttle.reserve(100_010), throttle.reserve(50), throttle.reserve(100)
    clock.advance(2)
    throttle.give_back(large)
    # The second has waited for long enough, and the third begins to wait.
    assert (second.due, third.due) == (2, 3)
    assert throttle.reserve(100).due == 4


@given(
    rate=st.integers(1, 10_000), burst=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3000)), min_size=1, max_size=30),
)
def test_over_every_span_at_most_the_burst_and_the_rate_go_through(
        rate: int, burst: int, steps: list[tuple[float, int]]) -> None:
    clock = ManualClock()
    throttle = Throttle(rate, burst_bytes=burst, clock=clock)
    grants: list[tuple[float, int]] = []
    for pause, size in steps:
        clock.advance(pause)
        throttle.take(size)
        grants.append((clock.monotonic(), size))
    for first, (start, largest) in enumerate(grants):
        total = 0
        for at, size in grants[first:]:
            total += size
            # The first request of a span may have been paid for before it, when it was larger than the burst.
            assert total <= max(burst, largest) + (at - start) * rate + 1e-6 * rate + 1e-6
    # Nor is anybody made to wait for nothing: pauses and the whole amount at the full rate are enough.
    assert clock.monotonic() <= sum(pause for pause, _ in steps) + sum(size for _, size in steps) / rate + 1e-6


@given(
    rate=st.integers(1, 10_000), burst=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3000), st.integers(0, 3)), min_size=1, max_size=30),
)
def test_over_every_span_the_rate_holds_whatever_is_given_back(
        rate: int, burst: int, steps: list[tuple[float, int, int]]) -> None:
    clock = ManualClock()
    throttle = Throttle(rate, burst_bytes=burst, clock=clock)
    waiting: list[tuple[Reservation, int]] = []
    grants: list[tuple[float, int]] = []

    def pass_time(until: float) -> None:
        for booked, size in [each for each in waiting if each[0].due <= until]:
            waiting.remove((booked, size))
            grants.append((max(booked.due, clock.monotonic()), size))
        clock.advance(max(0.0, until - clock.monotonic()))

    for pause, size, leaves in steps:
        pass_time(clock.monotonic() + pause)
        before = [booked.due for booked, _ in waiting]
        if leaves and waiting:
            throttle.give_back(waiting.pop(leaves % len(waiting))[0])
        else:
            waiting.append((throttle.reserve(size), size))
            before.append(waiting[-1][0].due)
        assert all(booked.due <= max(before) + 1e-6 for booked, _ in waiting)
        # Nobody waits for more than what waits, and for a burst that was lent.
        owed = sum(size for _, size in waiting) / rate
        assert all(booked.due <= clock.monotonic() + owed + 1e-6 for booked, _ in waiting)
    if waiting:
        pass_time(waiting[-1][0].due + 1)
    for first, (start, largest) in enumerate(grants):
        total = 0
        for at, size in grants[first:]:
            total += size
            assert total <= max(burst, largest) + (at - start) * rate + 1e-6 * rate + 1e-6


def test_threads_that_share_a_throttle_share_its_rate() -> None:
    clock = ManualClock()
    throttle = Throttle(1000, burst_bytes=100, clock=clock)

    def work() -> None:
        for _ in range(100):
            throttle.take(10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() >= (4000 - 100) / 1000 - 1e-6
