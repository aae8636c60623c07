# SPDX-License-Identifier: Apache-2.0
"""What a store remembers of the plans it has carried out, so that a schedule survives a restart.

A policy is a pure function; this is the memory that it is shown. It changes only when a plan has been carried out: a
check that comes to nothing uses nothing up.

A part of it are the segments that compactions had to leave out because of damage. None is offered to a policy again
before its file has changed or a wait is over, which doubles each time: else a policy that finds a damaged segment the
best of all would choose it at every check, and the store would never be compacted again.

The file `plan_history.json` holds one JSON object: `format` 1 and, in seconds since the epoch, `since`,
`last_full_at` and `last_middle_range_at` (each may be missing or null; further fields are ignored), and, if there are
any, the `damaged` segments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from compactlib.blobstore.model.names import SegmentName
from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.disk import Files, StrPath, read_if_there, write_durably

FILE_NAME = "plan_history.json"
_FORMAT = 1
_FIRST_WAIT_SECONDS = 86_400.0
_LONGEST_WAIT_SECONDS = 32 * _FIRST_WAIT_SECONDS
_MAX_TRIES = 1_000

PlanKind: TypeAlias = Literal["normal", "middle range", "full"]
"""Which schedule a plan answers to: `LastPlans` remembers when the last of each kind was carried out."""


@attrs.frozen(kw_only=True)
class DamagedSegment:
    """A segment that compactions have left out, because a record in it is damaged.

    Attributes:
        segment: its name.
        found: what is damaged, in words.
        stamp: the size and the time of change of its file when that was found; while they are the same, so is the file.
        tries: how many compactions in a row have left it out.
        retry_at: when it may be taken again, seconds since the epoch.
    """

    segment: str
    found: str
    stamp: str
    tries: int
    retry_at: float

    def waits(self, now: float) -> bool:
        """Whether it may not be taken yet. A time beyond the longest wait is that of a clock that was ahead."""
        return now < self.retry_at <= now + _LONGEST_WAIT_SECONDS


@attrs.frozen(kw_only=True)
class LastPlans:
    """From when a store's schedules count, and when plans of which kind were last carried out; seconds since the epoch.

    Attributes:
        since: when the store was created: schedules count from here until they have run once.
        last_full_at: when a plan over the full range was last carried out; `None` if never.
        last_middle_range_at: the same for the middle range of `StatsBased`.
        damaged: the segments that compactions have left out because of damage.
    """

    since: float
    last_full_at: float | None = None
    last_middle_range_at: float | None = None
    damaged: tuple[DamagedSegment, ...] = ()

    def after(self, kind: PlanKind, done_at: float) -> LastPlans:
        """The same once a plan of this kind has been carried out."""
        if kind == "full":
            return attrs.evolve(self, last_full_at=done_at)
        if kind == "middle range":
            return attrs.evolve(self, last_middle_range_at=done_at)
        return self

    def leaving_out(self, found: Mapping[SegmentName, str], done_at: float, folder: StrPath) -> LastPlans:
        """The same once a compaction has left these segments out, each with what was damaged in it."""
        tries = {each.segment: each.tries for each in self.damaged}
        new = tuple(
            DamagedSegment(segment=str(name), found=what, stamp=_stamp(folder, str(name)), tries=count,
                           retry_at=done_at + min(_FIRST_WAIT_SECONDS * 2.0 ** (count - 1), _LONGEST_WAIT_SECONDS))
            for name, what in sorted(found.items()) for count in [min(tries.get(str(name), 0) + 1, _MAX_TRIES)])
        names = {each.segment for each in new}
        return attrs.evolve(self, damaged=(*(each for each in self.damaged if each.segment not in names), *new))

    def still_damaged(self, present: Iterable[SegmentName], folder: StrPath) -> LastPlans:
        """The same without damaged segments that are gone, or whose file has changed since."""
        if not self.damaged:
            return self
        names: Collection[str] = set(map(str, present))
        left = tuple(each for each in self.damaged
                     if each.segment in names and each.stamp == _stamp(folder, each.segment))
        return attrs.evolve(self, damaged=left)


def _stamp(folder: StrPath, segment: str) -> str:
    """What changes with a segment's file; empty if it cannot be looked at."""
    try:
        found = os.stat(os.path.join(folder, SegmentName.parse(segment).log_file))
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def read_last_plans(folder: StrPath) -> LastPlans | None:
    """The last plans as kept in `folder`, or `None` if nothing is kept yet.

    Raises:
        CorruptData: the file holds something else. Without it schedules only start anew: removing it is safe.
        Unsupported: a later release wrote it.
        StorageError: it cannot be read.
    """
    path = Path(folder) / FILE_NAME
    data = read_if_there(path)
    if data is None:
        return None
    text = data.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        known = {name: _time(found.get(name)) for name in ("since", "last_full_at", "last_middle_range_at")}
        damaged = tuple(map(_damaged_segment, found.get("damaged") or ()))
        told_format = found.get("format", _FORMAT)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidInput) as error:
        raise _damaged(path, text) from error
    if told_format != _FORMAT:
        raise Unsupported(f"{path} has format {told_format!r}, this release reads {_FORMAT}; use the release that "
                          f"wrote it, or remove the file: schedules then start anew")
    since, last_full_at = known["since"], known["last_full_at"]
    if since is None:
        since = 0.0 if last_full_at is None else last_full_at
    return LastPlans(since=since, last_full_at=last_full_at, last_middle_range_at=known["last_middle_range_at"],
                     damaged=damaged)


def write_last_plans(files: Files, folder: StrPath, last: LastPlans) -> None:
    """Keep `last` in `folder`, durably and in one step.

    Raises:
        StorageError: the disk refuses; what was kept before stays.
    """
    told = {"format": _FORMAT, **attrs.asdict(last)}
    if not last.damaged:
        del told["damaged"]
    write_durably(files, os.fspath(Path(folder) / FILE_NAME), [json.dumps(told, sort_keys=True).encode()])


def _time(found: Any) -> float | None:
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        raise ValueError(f"{found!r} is not a time")
    return float(found)


def _damaged_segment(found: Any) -> DamagedSegment:
    retry_at = _time(found["retry_at"])
    texts = segment, what, stamp = found["segment"], found["found"], found["stamp"]
    tries = found["tries"]
    if retry_at is None or type(tries) is not int or not 1 <= tries <= _MAX_TRIES or not all(
            isinstance(each, str) for each in texts):
        raise ValueError(f"{found!r} is not a damaged segment")
    SegmentName.parse(segment)
    return DamagedSegment(segment=segment, found=what, stamp=stamp, tries=tries, retry_at=retry_at)


def _damaged(path: Path, text: str) -> CorruptData:
    return CorruptData(path=path, offset=0, expected="a JSON object with times in seconds", found=repr(text[:60]))
