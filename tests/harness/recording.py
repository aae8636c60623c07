# SPDX-License-Identifier: Apache-2.0
"""An observer that sorts its events: progress, counters, samples, and others."""

from __future__ import annotations

import threading
from typing import Any

import attrs


@attrs.frozen
class Progress:
    """The fields of an event `progress`."""

    work: str
    done: int
    total: int
    unit: str = "bytes"


class RecordingObserver:
    """Attributes:
        progresses: every progress, in order.
        counters: (name, sorted labels) to sum.
        measured: (name, sorted labels) to all samples, in order.
        events: (name, fields) of all others, in order.
        raw: (name, fields) of all, in order.
    """

    def __init__(self) -> None:
        self.progresses: list[Progress] = []
        self.counters: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self.measured: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.raw: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()

    def event(self, name: str, /, **fields: Any) -> None:
        with self._lock:
            self.raw.append((name, dict(fields)))
            if name == "progress":
                self.progresses.append(Progress(**fields))
            elif "add" in fields:
                added = fields.pop("add")
                key = name, tuple(sorted(fields.items()))
                self.counters[key] = self.counters.get(key, 0) + added
            elif "sample" in fields:
                sample = fields.pop("sample")
                self.measured.setdefault((name, tuple(sorted(fields.items()))), []).append(sample)
            else:
                self.events.append((name, fields))
