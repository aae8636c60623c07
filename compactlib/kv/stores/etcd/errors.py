# SPDX-License-Identifier: Apache-2.0
"""The names of what etcd refuses, by the gRPC codes that its JSON gateway passes on."""

from __future__ import annotations

import errno
import json

from compactlib.errors import DiskFull, StorageError
from compactlib.kv.errors import ConnectFailed, OutcomeUnknown, SlowDown, StoreFailed

_RESOURCE_EXHAUSTED = 8
_UNAVAILABLE = 14
_REFUSED = frozenset({3, 5, 6, 7, 9, 11, 12, 16})
"""Answers of a server that has looked at the request and will not carry it out: bad argument, no permission, ..."""


def refused(operation: str, path: str, text: str, reason: str, *, writes: bool) -> StorageError | SlowDown:
    """The library's error for an answer of etcd that is not a result.

    Args:
        operation: what was asked for.
        path: which store.
        text: the answer's body, in which the gateway puts a code and a message.
        reason: the answer's HTTP reason, for answers of something in front of etcd.
        writes: whether the operation writes: if it cannot be known that it was not carried out, say so.
    """
    code, message = _parsed(text)
    detail = message or reason or "an answer without a message"
    if code == _RESOURCE_EXHAUSTED or (code is None and reason == "Too Many Requests"):
        if "space exceeded" in detail:
            return DiskFull(operation=operation, path=path, errno=errno.EDQUOT, detail=f"etcd's own quota is full "
                            f"({detail})", advice="compact and defragment etcd and disarm its alarm (etcdctl alarm "
                            "disarm), or raise its --quota-backend-bytes, and call again")
        if "larger than max" not in detail:
            return SlowDown(operation=operation, detail=detail)
    elif code not in _REFUSED:
        # A leader that is lost, or a time-out inside of etcd: the proposal may still be on its way.
        return lost(operation, path, detail, writes=writes, unreachable=code == _UNAVAILABLE)
    return StoreFailed(operation=operation, path=path, detail=detail)


def lost(operation: str, path: str, detail: str, *, writes: bool, unreachable: bool) -> StoreFailed:
    """The library's error for a request that got no answer, or one that does not say whether it was carried out."""
    kind = OutcomeUnknown if writes else ConnectFailed if unreachable else StoreFailed
    return kind(operation=operation, path=path, detail=detail)


def _parsed(text: str) -> tuple[int | None, str]:
    try:
        answer = json.loads(text)
        return int(answer["code"]), str(answer.get("message", answer.get("error", "")))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None, text[:500].strip()
