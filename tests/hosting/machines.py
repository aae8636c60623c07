# SPDX-License-Identifier: Apache-2.0
"""State machines for tests of command logs."""

from __future__ import annotations

from compactlib.scheduler import Command


class Journal:
    """Remembers every command; `known` come from a snapshot."""

    def __init__(self, known: list[tuple[Command, bytes]] | None = None) -> None:
        self.commands = list(known or [])

    @property
    def applied_index(self) -> int:
        return self.commands[-1][0].index if self.commands else 0

    def apply(self, command: Command, payload: bytes) -> tuple[int, bytes]:
        assert command.index > self.applied_index
        self.commands.append((command, payload))
        return command.index, payload

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.commands]
