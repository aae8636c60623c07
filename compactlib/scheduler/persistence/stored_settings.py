# SPDX-License-Identifier: Apache-2.0
"""The settings that a scheduler's state was made under, stored with the state.

What was carried out once is never judged again by other limits: a journal or a log is replayed under the settings that
were in force when it was written, and new ones begin with a record of their own. Two schedulers with the same stored
state give the same answers to everything. Source: `docs/formats/scheduler-state.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from compactlib.errors import CorruptData, InvalidInput
from compactlib.scheduler.config import LevelConfig, SchedulerConfig
from compactlib.scheduler.persistence.codec import RECORDS, RecordKind, decode_record, encode_record, kind_of
from compactlib.scheduler.persistence.plain import Plain
from compactlib.scheduler.persistence.state_rows import dump_rows, load_rows
from compactlib.scheduler.queue.state import SchedulerState

_TAG = "settings"


def dump_state(state: SchedulerState) -> Iterator[list[Plain]]:
    """The rows of a state (see `dump_rows`), after one with its settings. O(everything), a row at a time."""
    yield [_TAG, _settings_to_plain(state.config)]
    yield from dump_rows(state)


def load_state(rows: Iterable[Plain], place: str = "a checkpoint") -> SchedulerState:
    """The state that gave these rows, under the settings it had. O(rows * log n).

    Raises:
        CorruptData: they are not what `dump_state` gives.
    """
    left = iter(rows)
    row = next(left, None)
    if not isinstance(row, list) or len(row) != 2 or row[0] != _TAG:
        raise CorruptData(path=place, offset=0, expected="the settings first", found=f"{row!r:.200}")
    return load_rows(left, _settings_from_plain(row[1], place), place)


def under(state: SchedulerState, config: SchedulerConfig) -> SchedulerState:
    """The state as it goes on under other settings; the very same if they are no others. O(everything).

    Blocks of levels that were not compacted before, and are now, are queued.
    """
    if config == state.config:
        return state
    again = load_rows(dump_rows(state), config, "a scheduler's state")
    now = 0.0 if state.timeline.latest is None else state.timeline.latest
    for block in again.unaccounted_blocks():
        if block.level >= len(state.config.levels):
            again.blocks.push_meta(block, now)
    return again


def encode_settings(config: SchedulerConfig) -> bytes:
    """The settings as a record, for a log: what comes after it is carried out under them."""
    return encode_record(RecordKind.SETTINGS, _settings_to_plain(config))


def holds_settings(data: bytes) -> bool:
    """Whether a record is one of `encode_settings`, and not of another kind."""
    return kind_of(data) == RecordKind.SETTINGS


def decode_settings(data: bytes, place: str = "settings") -> SchedulerConfig:
    """The inverse of `encode_settings`.

    Raises:
        CorruptData: the bytes are not those of settings.
        Unsupported: they were written by another release.
    """
    return _settings_from_plain(decode_record(data, RecordKind.SETTINGS, place), place)


def _settings_to_plain(config: SchedulerConfig) -> Plain:
    return attrs.asdict(config)


def _settings_from_plain(plain: Plain, place: str) -> SchedulerConfig:
    try:
        fields: dict[str, Any] = dict(plain)
        levels = tuple(LevelConfig(**level) for level in fields.pop("levels"))
        return SchedulerConfig(**fields, levels=levels)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidInput) as error:
        raise CorruptData(path=place, offset=RECORDS.header_bytes, expected="the settings of a scheduler",
                          found=f"{type(error).__name__}: {error}") from error
