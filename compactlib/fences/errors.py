# SPDX-License-Identifier: Apache-2.0
"""The errors of fences; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import Conflict, Stale


class FencedOff(Stale):
    """The fence has admitted a higher token: the job went to another worker. Stop working on it.

    Attributes:
        resource: the fenced resource, usually the job's name.
        token: the refused token.
        highest: the highest token admitted, or the floor.
    """

    def __init__(self, *, resource: str, token: int, highest: int) -> None:
        super().__init__(f"token {token} is stale: {resource!r} has seen {highest}; its job went to another worker, "
                         f"so stop working on it")
        self.resource = resource
        self.token = token
        self.highest = highest


class CommittedOtherwise(Conflict):
    """The same token has committed another value before, which stays. A worker must not commit twice."""

    def __init__(self, *, resource: str, token: int) -> None:
        super().__init__(f"token {token} has committed another value to {resource!r} before, which stays; read it with "
                         f"committed(), and commit once per token")


class OtherLog(Conflict):
    """A fence keeps the tokens of another log. Tokens of two logs cannot be compared: give each log a fence."""

    def __init__(self, *, place: str, log: str, kept: str) -> None:
        super().__init__(f"{place} keeps tokens of log {kept!r}, and {log!r} was named; nothing was changed: give the "
                         f"fence of each log a place of its own, or name the log whose tokens these are")
