# SPDX-License-Identifier: Apache-2.0
"""Lives of one store, each under other settings: what was acknowledged under the old ones stays, whatever the new ones.

>>> class Counter:
...     def __init__(self):
...         self.value, self.acknowledged = 0, 0
>>> def life(counter, limit, rng):
...     counter.value = min(counter.value + rng.randrange(5), limit)
...     counter.acknowledged = max(counter.acknowledged, counter.value)
>>> def audit(counter, limit):
...     assert counter.value >= counter.acknowledged, "what was acknowledged has gone"
>>> try:
...     check_settings(Counter, [10, 3, 20], life, audit)
... except SettingsFailure as failed:
...     print(failed.__cause__, "3" in failed.settings)
what was acknowledged has gone True
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

import attrs

from compactlib.errors import CompactlibError, InvalidInput

WorldT = TypeVar("WorldT")
SettingsT = TypeVar("SettingsT")
Life: TypeAlias = Callable[[WorldT, SettingsT, random.Random], object]
"""Opens the store under these settings, works, notes in the world what was acknowledged; closes it, or dies."""
Audit: TypeAlias = Callable[[WorldT, SettingsT], object]
"""Opens the store under these settings and raises if something acknowledged has changed; may itself change nothing."""


@attrs.frozen
class SettingsReport:
    """What was run.

    Attributes:
        histories: worlds, each with several lives.
        lives: lives in all, each under settings drawn for it.
        changes: how often two lives that follow each other had different settings.
    """

    histories: int
    lives: int
    changes: int


class SettingsFailure(CompactlibError, AssertionError):
    """A store lost or changed something under new settings; the cause is what the audit, or a life, raised.

    Attributes:
        seed: of the history; `check_settings(..., histories=1, first_seed=seed)` runs it again.
        settings: those of the lives that it takes, in order, as text.
    """

    def __init__(self, message: str, *, seed: int, settings: str) -> None:
        super().__init__(message)
        self.seed = seed
        self.settings = settings


def check_settings(make_world: Callable[[], WorldT], settings: Sequence[SettingsT], life: Life[WorldT, SettingsT],
                   audit: Audit[WorldT, SettingsT], *, histories: int = 30, lives: int = 4,
                   first_seed: int = 0) -> SettingsReport:
    """Let stores live several lives, each under settings drawn for it, and audit after each life under yet others.

    Args:
        make_world: a new folder or store, and the model of what was acknowledged in it.
        settings: all legal; what one life may be opened under.
        life: one life; draws what it does from the generator alone, so that a history can be run again. It may end by
            closing, or as a crash does: by leaving everything as it is (see `crash.record` for power failures).
        audit: opens the world under settings and compares with the model.
        histories: how many worlds.
        lives: of each world, >= 1.
        first_seed: histories are seeded with it, and the numbers after it.

    Raises:
        SettingsFailure: an audit or a life failed, in the fewest lives for which this history fails.
        InvalidInput: there are no settings, or no lives.
    """
    if not settings or lives < 1:
        raise InvalidInput(f"{len(settings)} settings and {lives} lives; give at least one of each")
    changes = 0
    for seed in range(first_seed, first_seed + histories):
        drawn = _drawn(seed, settings, lives)
        changes += sum(one is not next_one for one, next_one in pairwise(drawn))
        if _failure(make_world, drawn, life, audit, seed) is not None:
            shown, error = _fewest(make_world, settings, drawn, life, audit, seed)
            text = ", ".join(map(str, shown))
            raise SettingsFailure(f"under the settings {text}: {type(error).__name__}: {error} (seed {seed}; "
                                  f"check_settings(..., histories=1, first_seed={seed}) runs it again)",
                                  seed=seed, settings=text) from error
    return SettingsReport(histories, histories * lives, changes)


def _drawn(seed: int, settings: Sequence[SettingsT], lives: int) -> list[SettingsT]:
    # One more than the lives: the last audit is under settings that no life had to have.
    rng = random.Random(f"settings {seed}")
    return [rng.choice(settings) for _ in range(lives + 1)]


def _failure(make_world: Callable[[], WorldT], drawn: Sequence[SettingsT], life: Life[WorldT, SettingsT],
             audit: Audit[WorldT, SettingsT], seed: int) -> Exception | None:
    world = make_world()
    try:
        for number, chosen in enumerate(drawn[:-1]):
            life(world, chosen, random.Random(f"life {seed} {number}"))
            audit(world, drawn[number + 1])
    except Exception as error:
        return error
    return None


def _fewest(make_world: Callable[[], WorldT], settings: Sequence[SettingsT], drawn: Sequence[SettingsT],
            life: Life[WorldT, SettingsT], audit: Audit[WorldT, SettingsT],
            seed: int) -> tuple[Sequence[SettingsT], Exception]:
    """Fewer lives under fewer settings for which it still fails."""
    candidates = [list(drawn[:count]) for count in range(2, len(drawn) + 1)]
    shortest = next(each for each in candidates if each == list(drawn) or _failure(make_world, each, life, audit, seed))
    for place in range(len(shortest) - 1):
        simpler = [*shortest[:place], shortest[0], *shortest[place + 1:]]
        if _failure(make_world, simpler, life, audit, seed):
            shortest = simpler
    error = _failure(make_world, shortest, life, audit, seed)
    if error is None:
        raise InvalidInput(f"the history of seed {seed} failed once and not again; lives must draw from their "
                           f"generator alone")
    return shortest, error
