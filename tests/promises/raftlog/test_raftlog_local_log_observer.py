# SPDX-License-Identifier: Apache-2.0
"""An observer of a `LocalLog` may decide a further command, or close the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.commandlog import Command
from compactlib.raftlog import LocalLog, LogOptions

CALLS: dict[str, Callable[[LocalLog], object]] = {
    "decide": lambda log: log.decide(lambda _: b"another"), "compact": lambda log: log.compact(1),
    "close": LocalLog.close}


class Machine:
    applied_index = 0

    def apply(self, command: Command, payload: bytes) -> bytes:
        self.applied_index = command.index
        return payload


class Calling:
    """An observer that calls the log when the first command has become durable."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.events.append((name, fields))
        if len(self.events) == 1:
            CALLS[self.call](self.log)

    log: LocalLog


@pytest.mark.parametrize("call", CALLS)
def test_observer_of_a_command_log_calls_the_log(tmp_path: Path, call: str) -> None:
    observer, answers = Calling(call), list[bytes]()
    observer.log = LocalLog(tmp_path / "log", LogOptions(observer=observer))
    observer.log.start(Machine())
    thread = threading.Thread(target=lambda: answers.append(observer.log.decide(lambda _: b"first")), daemon=True)
    thread.start()
    thread.join(30)
    assert answers == [b"first"]
    assert [fields for name, fields in observer.events if name == "command_log_commands"] == [
        {"add": 1}] * (2 if call == "decide" else 1)
    observer.log.close()
