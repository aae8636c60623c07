# SPDX-License-Identifier: Apache-2.0
"""`compactlib watch`: the few numbers of a store, one line a look, while its owner goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from compactlib._arguments import require_seconds, require_whole
from compactlib.app.kinds import store_at
from compactlib.app.stores import Asked
from compactlib.app.terminal import short_number
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy

_LINES_BETWEEN_HEADINGS = 20


def watch(asked: Asked, *, times: int | None, every_seconds: float, as_json: bool, clock: Clock | None = None) -> int:
    """Print one line a look, until Ctrl-C or after so many; returns the exit code.

    Args:
        asked: which store; it is opened anew at each look, for reading alone.
        times: how many looks; default without end.
        every_seconds: how long to wait between two.
        as_json: print an object a line.
        clock: dates the looks, and waits.

    Raises:
        InvalidInput: there is no look, or a wait that is none.
        CompactlibError: the store cannot be read.
    """
    require_whole("--times", times, 1, or_none=True)
    require_seconds("--every", every_seconds)
    clock = SystemClock() if clock is None else clock
    looks = 0
    try:
        while True:
            try:
                levels = store_at(asked).levels()
            except Busy:
                # Its owner changed it in the middle of the look.
                levels = None
            if levels is not None:
                _show({"time": round(clock.now(), 3), **levels}, looks, as_json=as_json)
                looks += 1
            if looks == times:
                return 0
            clock.sleep(every_seconds)
    except KeyboardInterrupt:
        return 0


def _show(row: Mapping[str, Any], looks: int, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
        return
    row = {**row, "time": datetime.fromtimestamp(row["time"], tz=UTC).astimezone().strftime("%H:%M:%S")}
    headings = [name.removesuffix("_bytes") + " B" * name.endswith("_bytes") for name in row]
    if looks % _LINES_BETWEEN_HEADINGS == 0:
        print("  ".join(f"{heading:>8}" for heading in headings), flush=True)
    print("  ".join(f"{short_number(value):>{max(8, len(heading))}}"
                    for value, heading in zip(row.values(), headings, strict=True)), flush=True)
