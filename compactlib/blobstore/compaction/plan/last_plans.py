# SPDX-License-Identifier: Apache-2.0
"""What a store remembers of the plans it has carried out, so that a schedule survives a restart.

A policy is a pure function; this is the memory that it is shown. It changes only when a plan has been carried out: a
check that comes to nothing uses nothing up.

The file `plan_history.json` holds one JSON object: `format` 1 and, in seconds since the epoch, `since`,
`last_full_at` and `last_middle_range_at` (each may be missing or null; further fields are ignored).
"""

from __future__ import annotations

import json
import os
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from compactlib.errors import CorruptData, Unsupported
from compactlib.files.disk import Files, StrPath, write_durably

FILE_NAME = "plan_history.json"
_FORMAT = 1

PlanKind: TypeAlias = Literal["normal", "middle range", "full"]
"""Which schedule a plan answers to: `LastPlans` remembers when the last of each kind was carried out."""


@attrs.frozen(kw_only=True)
class LastPlans:
    """From when a store's schedules count, and when plans of which kind were last carried out; seconds since the epoch.

    Attributes:
        since: when the store was created: schedules count from here until they have run once.
        last_full_at: when a plan over the full range was last carried out; `None` if never.
        last_middle_range_at: the same for the middle range of `StatsBased`.
    """

    since: float
    last_full_at: float | None = None
    last_middle_range_at: float | None = None

    def after(self, kind: PlanKind, done_at: float) -> LastPlans:
        """The same once a plan of this kind has been carried out."""
        if kind == "full":
            return attrs.evolve(self, last_full_at=done_at)
        if kind == "middle range":
            return attrs.evolve(self, last_middle_range_at=done_at)
        return self


def read_last_plans(folder: StrPath) -> LastPlans | None:
    """The last plans as kept in `folder`, or `None` if nothing is kept yet.

    Raises:
        CorruptData: the file holds something else. Without it schedules only start anew: removing it is safe.
        Unsupported: a later release wrote it.
    """
    path = Path(folder) / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
        known = {field.name: _time(found.get(field.name)) for field in attrs.fields(LastPlans)}
        told_format = found.get("format", _FORMAT)
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, text) from error
    if told_format != _FORMAT:
        raise Unsupported(f"{path} has format {told_format!r}, this release reads {_FORMAT}; use the release that "
                          f"wrote it, or remove the file: schedules then start anew")
    since, last_full_at = known["since"], known["last_full_at"]
    if since is None:
        since = 0.0 if last_full_at is None else last_full_at
    return LastPlans(since=since, last_full_at=last_full_at, last_middle_range_at=known["last_middle_range_at"])


def write_last_plans(files: Files, folder: StrPath, last: LastPlans) -> None:
    """Keep `last` in `folder`, durably and in one step.

    Raises:
        StorageError: the disk refuses; what was kept before stays.
    """
    told = json.dumps({"format": _FORMAT, **attrs.asdict(last)}, sort_keys=True)
    write_durably(files, os.fspath(Path(folder) / FILE_NAME), [told.encode()])


def _time(found: Any) -> float | None:
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        raise ValueError(f"{found!r} is not a time")
    return float(found)


def _damaged(path: Path, text: str) -> CorruptData:
    return CorruptData(path=path, offset=0, expected="a JSON object with times in seconds", found=repr(text[:60]))
