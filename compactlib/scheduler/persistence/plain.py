# SPDX-License-Identifier: Apache-2.0
"""The scheduler's values as plain lists, numbers and text, and back: what stored records and messages are made of.

A value is a list that begins with its tag; the fields follow in the order of `FIELDS`. Text, numbers and `None` stand
for themselves, a tuple is a list that begins with 0. Source: `docs/formats/scheduler-state.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from itertools import islice
from operator import attrgetter
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from compactlib.scheduler import config
from compactlib.scheduler.model import poll, update, values as model
from compactlib.scheduler.queue import state

Plain: TypeAlias = Any
"""What JSON can hold."""

FIELDS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "cmd": (model.Command, ("index", "term", "appended_at")),
    "meta": (model.BlockMeta, ("id", "tenant", "shard", "level", "min_time", "max_time", "size_bytes", "rows",
                              "columns")),
    "tb": (model.BlockTombstones, ("name", "tenant", "shard", "level", "blocks")),
    "ts": (model.ShardTombstone, ("name", "tenant", "shard", "timestamp", "duration")),
    "plan": (model.JobPlan, ("name", "tenant", "shard", "compaction_level", "source_blocks", "tombstones",
                              "size_bytes")),
    "state": (model.JobState, ("name", "compaction_level", "status", "token", "lease_expires_at", "added_at",
                               "failures", "sequence", "not_before", "last_failure", "releases")),
    "result": (model.CompactedBlocks, ("tenant", "shard", "source_blocks", "new_blocks", "no_output")),
    "say": (poll.StatusUpdate, ("name", "token", "status", "compacted_blocks", "reason")),
    "poll": (poll.PollRequest, ("status_updates", "job_capacity", "deleted_tombstones")),
    "answer": (poll.StatusAnswer, ("name", "verdict", "holder_deadline", "detail")),
    "lease": (poll.Assignment, ("name", "token", "lease_expires_at", "blocks")),
    "response": (poll.PollResponse, ("compaction_jobs", "assignments", "answers", "tombstones", "now", "why")),
    "new": (update.NewJob, ("state", "plan")),
    "assign": (update.AssignedJob, ("state", "replaced")),
    "renew": (update.UpdatedJob, ("state",)),
    "return": (update.ReturnedJob, ("state", "held_token")),
    "done": (update.CompletedJob, ("state", "compacted_blocks")),
    "evict": (update.EvictedJob, ("state",)),
    "refuse": (update.RefusedOutputs, ("job", "blocks")),
    "tlease": (update.TombstoneLease, ("tombstone", "lease_expires_at")),
    "update": (update.PlanUpdate, ("index", "term", "now", "new_jobs", "assigned_jobs", "updated_jobs", "returned_jobs",
                                   "completed_jobs", "evicted_jobs", "refused_outputs", "leased_tombstones",
                                   "deleted_tombstones", "shared", "turns", "answers", "limits", "policy", "why")),
    "limits": (config.Limits, ("max_queue_size", "max_quarantine_size", "max_tombstones", "lease_seconds",
                               "max_backoff_seconds", "cleanup_lease_seconds")),
    "add": (update.AddBlocks, ("blocks",)),
    "added": (update.BlocksAdded, ("queued", "terminal", "duplicate", "tombstoned")),
    "tick": (update.Tick, ()),
    "retain": (update.Retain, ("before",)),
    "requeue": (update.Requeue, ("names",)),
    "configure": (update.Configure, ("config",)),
    "opening": (update.Opening, ("config", "with_index")),
    "level": (config.LevelConfig, ("max_blocks", "max_age_seconds", "max_job_bytes", "max_range_seconds")),
    "settings": (config.SchedulerConfig, (
        "levels", "max_failures", "max_releases", "lease_seconds", "max_queue_size", "max_quarantine_size",
        "max_jobs_per_poll", "backoff_seconds", "max_backoff_seconds", "cleanup_batch_size",
        "cleanup_delay_seconds", "cleanup_min_level", "cleanup_max_level", "max_tombstones", "cleanup_lease_seconds",
        "tokens_above")),
    "quarantined": (state.QuarantinedJob, ("plan", "reason", "failures", "since", "orphans")),
}
"""Tag to class and stored fields, in order. New fields may be added at the end of a class's only."""


def _is_set(plain: Any) -> bool | None:
    return bool(plain) if plain in (0, 1) else None


_CONVERTED: dict[type[Any], dict[str, Callable[[Any], Any]]] = {
    model.JobState: {"status": model.JobStatus},
    model.CompactedBlocks: {"no_output": model.NoOutput},
    poll.StatusAnswer: {"verdict": poll.Verdict},
    update.Opening: {"with_index": _is_set},
}


def _fields_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of these fields."""
    # Of a single one `attrgetter` makes no tuple.
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)


_TAGS: dict[type[Any], tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    kind: (tag, _fields_of(names)) for tag, (kind, names) in FIELDS.items()}
_ATOMS = frozenset((str, int, float, type(None)))


def to_plain(value: Any) -> Plain:
    """The value as lists, numbers and text. O(size)."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple:
        return [0, *[part if type(part) in _ATOMS else to_plain(part) for part in value]]
    found = _TAGS.get(kind)
    if found is not None:
        tag, fields_of = found
        return [tag, *[part if type(part) in _ATOMS else to_plain(part) for part in fields_of(value)]]
    if isinstance(value, Enum):
        return value._value_
    if isinstance(value, int):  # a bool, or another kind of integer
        return int(value)
    raise TypeError(f"a {kind.__name__} has no stored form")


def from_plain(plain: Plain) -> Any:
    """The value again. O(size).

    Raises:
        ValueError: it is not what `to_plain` gives.
    """
    if type(plain) is not list:
        if type(plain) in _ATOMS:
            return plain
        raise ValueError(f"{plain!r} stands for no value")
    if not plain:
        raise ValueError("an empty list stands for no value")
    head = plain[0]
    if head == 0 and not isinstance(head, str):
        return tuple(map(from_plain, plain[1:]))
    found = FIELDS.get(head) if isinstance(head, str) else None
    if found is None:
        raise ValueError(f"{head!r} is no tag of a value")
    kind, names = found
    if len(plain) != len(names) + 1:
        raise ValueError(f"{head!r} has {len(plain) - 1} fields instead of {len(names)}")
    fields = {}
    for (name, usual, convert, fits), value in zip(_checks(head), islice(plain, 1, None), strict=True):
        if type(value) is list:
            value = from_plain(value)
        if convert is not None and value is not None:
            value = convert(value)
        if type(value) is not usual and not fits(value):
            raise ValueError(f"{kind.__name__}.{name} cannot be {value!r:.200}")
        fields[name] = value
    return kind(**fields)


_Convert: TypeAlias = Callable[[Any], Any] | None
_Fits: TypeAlias = Callable[[Any], bool]


@cache
def _checks(tag: str) -> tuple[tuple[str, object, _Convert, _Fits], ...]:
    """For each stored field of a class, its name, a type that always fits, what converts it, and whether it fits."""
    kind, names = FIELDS[tag]
    hints, converted = get_type_hints(kind), _CONVERTED.get(kind, {})
    # An object of a class is looked at no closer: it was checked as it was made. What is in a tuple is.
    return tuple((name, hints[name] if isinstance(hints[name], type) else None, converted.get(name),
                  _check_of(hints[name])) for name in names)


def _check_of(hint: Any) -> Callable[[Any], bool]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        checks = [_check_of(part) for part in parts]
        return lambda value: any(fits(value) for fits in checks)
    if origin is tuple and parts[1:] == (...,):
        each = _check_of(parts[0])
        return lambda value: type(value) is tuple and all(map(each, value))
    if origin is tuple:
        checks = [_check_of(part) for part in parts]
        return lambda value: (type(value) is tuple and len(value) == len(checks)
                              and all(fits(part) for fits, part in zip(checks, value, strict=True)))
    if origin is Literal:
        return lambda value: value in parts
    if hint is float:
        return lambda value: type(value) in (float, int)
    return lambda value: type(value) is hint


def misfit(value: object, kind: type[Any]) -> str | None:
    """Where a value is not of a class with a stored form, or holds something that it cannot; `None` if it is fine."""
    if type(value) is not kind:
        return f"a {type(value).__name__} stands where a {kind.__name__} belongs"
    for name, _, _, fits in _checks(_TAGS[kind][0]):
        part = getattr(value, name)
        if not fits(part):
            return f"{kind.__name__}.{name} cannot be {part!r:.200}"
        for each in part if type(part) is tuple else (part,):
            found = misfit(each, type(each)) if type(each) in _TAGS else None
            if found is not None:
                return found
    return None
