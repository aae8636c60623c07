# SPDX-License-Identifier: Apache-2.0
"""Tokens and their seals: the ownership rule, and what a forger may try."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput
from compactlib.scheduler.fences.token import TokenSealer

KEY = b"0123456789abcdef"
names = st.text(max_size=20)
tokens = st.integers(0, (1 << 64) - 1)


@given(job=names, token=tokens, other_job=names, other_token=tokens)
def test_a_seal_is_good_for_its_job_and_its_token_alone(job: str, token: int, other_job: str, other_token: int) -> None:
    sealer = TokenSealer({"a": KEY})
    seal = sealer.seal(job, token)
    assert sealer.is_genuine(job, token, seal)
    assert sealer.is_genuine(other_job, token, seal) is (other_job == job)
    assert sealer.is_genuine(job, other_token, seal) is (other_token == token)


@given(st.data())
def test_no_altered_seal_is_genuine(data: st.DataObject) -> None:
    sealer = TokenSealer({"a": KEY})
    seal = sealer.seal("job", 7)
    place = data.draw(st.integers(0, len(seal) - 1))
    altered = seal[:place] + data.draw(st.text(max_size=2)) + seal[place + 1:]
    assert sealer.is_genuine("job", 7, altered) is (altered == seal)


@given(job=names, token=st.integers(), seal=st.text(st.characters(exclude_categories=())))
def test_whatever_is_sent_is_refused_without_an_error(job: str, token: int, seal: str) -> None:
    assert not TokenSealer({"a": KEY}).is_genuine(job, token, seal)


def test_a_seal_of_another_key_is_refused_also_under_the_same_name() -> None:
    seal = TokenSealer({"a": KEY}).seal("job", 7)
    assert not TokenSealer({"a": b"another key, long enough"}).is_genuine("job", 7, seal)
    assert not TokenSealer({"b": KEY}).is_genuine("job", 7, seal)


def test_keys_are_changed_while_jobs_run() -> None:
    old = TokenSealer({"old": KEY})
    both = TokenSealer({"old": KEY, "new": b"fedcba9876543210"}, current="new")
    new = TokenSealer({"new": b"fedcba9876543210"})
    assert both.is_genuine("job", 7, old.seal("job", 7))
    assert new.is_genuine("job", 7, both.seal("job", 7))
    assert not new.is_genuine("job", 7, old.seal("job", 7))


def test_the_seal_is_the_same_in_every_release() -> None:
    assert TokenSealer({"a": KEY}).seal("ffba6b12acb007e6-TA-S1-L0", 41) == GOLDEN


GOLDEN = "a.RQugOIlXC4IHueIGKai9dMtz5kd8yL_SpMkNxszKBEI"


def test_a_sealer_travels_and_does_not_print_its_keys() -> None:
    sealer = TokenSealer({"a": KEY})
    again = pickle.loads(pickle.dumps(sealer))
    assert again.is_genuine("job", 7, sealer.seal("job", 7))
    assert repr(sealer) == "TokenSealer(keys a; seals with a)"


@pytest.mark.parametrize("keys", [{}, {"a": b"short"}, {"": KEY}, {"a.b": KEY}, {"a": KEY, "b": KEY},
                                  {f"key{number}": KEY for number in range(17)}])
def test_keys_that_are_none(keys: dict[str, bytes]) -> None:
    with pytest.raises(InvalidInput):
        TokenSealer(keys)


def test_the_key_that_seals_must_be_there() -> None:
    with pytest.raises(InvalidInput, match="'c', but the keys are a, b"):
        TokenSealer({"a": KEY, "b": KEY}, current="c")


@pytest.mark.parametrize("token", [-1, 1 << 64])
def test_what_is_no_token_is_not_sealed(token: int) -> None:
    with pytest.raises(InvalidInput):
        TokenSealer({"a": KEY}).seal("job", token)
