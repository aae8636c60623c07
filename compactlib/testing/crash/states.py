# SPDX-License-Identifier: Apache-2.0
"""Which crash states to look at: all of them where they are few, a spread of them where they are many.

Pure: the pending changes and a random generator go in, choices come out. Same generator state, same choices.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from compactlib.errors import InvalidInput
from compactlib.testing.crash.model import BLOCK_BYTES, Change, CrashModel, NameChange
from compactlib.testing.crash.operations import Recording, Write
from compactlib.testing.crash.state import ChangeId, Choice, Choices, CrashState, Cut, Fate, Hole

SECTOR_BYTES = 512
"""Torn writes are cut at multiples of this, and at some bytes between."""


@attrs.define
class Tally:
    """How much was looked at."""

    points: int = 0
    complete_points: int = 0
    states: int = 0
    distinct: int = 0


@attrs.frozen
class Candidate:
    """One crash state, and the model standing at its point; valid until the next one is asked for."""

    model: CrashModel
    state: CrashState
    choices: Choices


def distinct_states(recording: Recording, rng: random.Random, limit_per_point: int, points: Iterable[int] | None,
                    seen: set[tuple[bytes, object]], tally: Tally, context: object = None) -> Iterator[Candidate]:
    """The crash states of a recording in order of their points, one for each content of the folder.

    States with equal content are distinguished if more was acknowledged by the later one.

    Args:
        recording: what was done.
        rng: chooses among the states of a point that has too many.
        limit_per_point: states of one point to look at, at most, >= 2.
        points: numbers of operations after which to crash; all if not given.
        seen: contents that are not to be given again; grows.
        tally: counts what is looked at.
        context: contents seen in another context do not count as seen.

    Raises:
        InvalidInput: the limit is below 2, or a point lies outside the recording.
    """
    if limit_per_point < 2:
        raise InvalidInput(f"a point has two states at least, all kept and all lost; found the limit {limit_per_point}")
    model = CrashModel(recording)
    for point in range(len(recording.operations) + 1) if points is None else sorted(set(points)):
        model.advance_to(point)
        tally.points += 1
        options = {change_id: options_of(change) for change_id, change in model.pending.items()}
        listed: Iterable[Choices]
        if math.prod(map(len, options.values())) <= limit_per_point:
            tally.complete_points += 1
            listed = every_choice(options)
        else:
            listed = sampled_choices(options, model.pending, rng, limit_per_point)
        acknowledged = len(recording.acknowledged(point))
        for choices in listed:
            tally.states += 1
            key = (model.fingerprint(choices), (acknowledged, context))
            if key not in seen:
                seen.add(key)
                tally.distinct += 1
                yield Candidate(model, CrashState.of(point, choices), choices)


def options_of(change: Change) -> tuple[Choice, ...]:
    """What may become of a change: kept, lost, and for a write some ways to be torn."""
    if not isinstance(change, Write):
        return Fate.KEPT, Fate.LOST
    start, length = change.offset, len(change.data)
    first_sector = SECTOR_BYTES - start % SECTOR_BYTES
    sectors = range(first_sector, length, SECTOR_BYTES)
    cuts = {1, length // 2, length - 1, *_spread(sectors)}
    blocks = range(start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES + 1)
    return (Fate.KEPT, Fate.LOST, *(Cut(size) for size in sorted(cuts) if 0 < size < length),
            *(Hole(block) for block in sorted({*_spread(blocks)})))


def _spread(values: Sequence[int]) -> Sequence[int]:
    return [values[0], values[len(values) // 2], values[-1]] if values else []


def every_choice(options: Mapping[ChangeId, Sequence[Choice]]) -> list[Choices]:
    """All combinations; those that differ least from "nothing lost" first, so that a failure is a simple one."""
    combined = itertools.product(*options.values())
    by_damage = sorted(combined, key=lambda choices: sum(choice is not Fate.KEPT for choice in choices))
    return [dict(zip(options, choices, strict=True)) for choices in by_damage]


def sampled_choices(options: Mapping[ChangeId, Sequence[Choice]], pending: Mapping[ChangeId, Change],
                    rng: random.Random, limit: int) -> Iterator[Choices]:
    """At most `limit` combinations, for a point that has more.

    Nothing lost; all lost; all combinations of names with no byte lost, if they fill at most half of the room; one
    thing unlike the others (one lost, one kept, one torn in one way); and random ones in the rest, at least a quarter.
    """
    kept: dict[ChangeId, Choice] = dict.fromkeys(options, Fate.KEPT)
    lost: dict[ChangeId, Choice] = dict.fromkeys(options, Fate.LOST)
    yield kept
    yield lost
    room = limit - 2
    names = {change_id: options[change_id] for change_id, change in pending.items() if isinstance(change, NameChange)}
    all_names = 2 ** len(names) - 1 <= room // 2
    if all_names:
        for choices in every_choice(names)[1:]:
            room -= 1
            yield {**kept, **choices}
    alone = [(lost, change_id, Fate.KEPT) for change_id in options] + [
        (kept, change_id, choice) for change_id, choices in options.items() for choice in choices
        if choice is not Fate.KEPT and not (all_names and change_id in names)]
    if len(alone) > room * 3 // 4:
        alone = rng.sample(alone, room * 3 // 4)
    for others, change_id, choice in alone:
        yield {**others, change_id: choice}
    for _ in range(room - len(alone)):
        yield {change_id: _random_choice(change, rng) for change_id, change in pending.items()}


def _random_choice(change: Change, rng: random.Random) -> Choice:
    if isinstance(change, Write) and len(change.data) > 1 and rng.random() < 0.2:
        if rng.random() < 0.5:
            return Cut(rng.randrange(1, len(change.data)))
        return Hole((change.offset + rng.randrange(len(change.data))) // BLOCK_BYTES)
    return rng.choice((Fate.KEPT, Fate.LOST))
