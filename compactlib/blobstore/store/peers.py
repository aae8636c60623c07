# SPDX-License-Identifier: Apache-2.0
"""Which peers have not read a delete yet, and which containers are gone: the answers to a compaction's questions.

Both are values in memory that a host fills; neither has to last. A tracker that was just made knows its peers but not
how far they are, and then no tombstone goes for their sake.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any

import attrs

from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.store.replication import ReplicationToken
from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, InvalidInput, NotFound
from compactlib.report import Table
from compactlib.runtime import SteadyClock


@attrs.frozen
class _Heard:
    token: ReplicationToken | None
    at: float
    tick: float

    @classmethod
    def now(cls, token: ReplicationToken | None, clock: Clock) -> _Heard:
        return cls(token, clock.now(), clock.monotonic())


class PeerTokens:
    """How far each peer of a store has followed it. Threads may share one.

    Args:
        incarnation: the store's; a peer with a token of another one has to begin anew, and has seen nothing.
        peers: their names; with none, no tombstone is held back.
        ignore_idle_seconds: a peer that has not reported for longer than this does not count; 0 never ignores one.
        clock: where time comes from.

    Raises:
        InvalidInput: `ignore_idle_seconds` is negative, or `peers` is one name alone.
    """

    def __init__(self, incarnation: bytes, peers: Iterable[str], *, ignore_idle_seconds: float = 0.0,
                 clock: Clock | None = None) -> None:
        if ignore_idle_seconds < 0:
            raise InvalidInput(f"ignore_idle_seconds is {ignore_idle_seconds}; give 0 (never) or more")
        self._incarnation = incarnation
        self._ignore_idle_seconds = ignore_idle_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        began = _Heard.now(None, self._clock)
        self._heard = dict.fromkeys(peers, began)
        self._lock = threading.Lock()

    def heard(self, peer: str, token: ReplicationToken | None) -> None:
        """A peer has asked with this token, so it has seen everything up to it; `None` if it begins anew.

        Raises:
            NotFound: the peer is not one of those that were named.
        """
        with self._lock:
            if peer not in self._heard:
                known = ", ".join(sorted(self._heard)) or "(none)"
                raise NotFound(f"{peer!r} is none of the peers {known}; add it first")
            self._heard[peer] = _Heard.now(token, self._clock)

    def add(self, peer: str) -> None:
        """One more peer, which has seen nothing yet; one that is known stays as it is."""
        with self._lock:
            self._heard.setdefault(peer, _Heard.now(None, self._clock))

    def remove(self, peer: str) -> None:
        """A peer that does not follow the store any more; an unknown one does not matter."""
        with self._lock:
            self._heard.pop(peer, None)

    def have_seen(self, entry: IndexEntry) -> bool:
        """Whether every peer that counts has read this record; for `Questions.seen_by_all_peers`. O(peers)."""
        now = self._clock.monotonic()
        with self._lock:
            return all(self._has_seen(heard, entry) or self._is_ignored(heard, now) for heard in self._heard.values())

    def _has_seen(self, heard: _Heard, entry: IndexEntry) -> bool:
        token = heard.token
        return token is not None and token.incarnation == self._incarnation and token.sequence >= entry.sequence

    def _is_ignored(self, heard: _Heard, now: float) -> bool:
        # By the monotonic clock: one that was set ahead makes no peer idle.
        return 0 < self._ignore_idle_seconds < now - heard.tick

    def audit(self) -> None:
        """Check that no token is one that cannot be.

        Raises:
            AuditFailed: a sequence is negative; the message names the peer.
        """
        with self._lock:
            for name, heard in self._heard.items():
                if heard.token is not None and heard.token.sequence < 0:
                    raise AuditFailed(f"peer {name!r} has read up to {heard.token.sequence}, which is no sequence")

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a peer: how far it is, when it reported last, and whether it counts."""
        now = self._clock.monotonic()
        with self._lock:
            return [{"peer": name, "sequence": heard.token.sequence if heard.token else None, "heard_at": heard.at,
                     "counts": not self._is_ignored(heard, now)} for name, heard in sorted(self._heard.items())]

    def __repr__(self) -> str:
        return f"PeerTokens({len(self._heard)} peers)"

    def __str__(self) -> str:
        return str(Table.from_dicts(self.to_dicts(), title=repr(self)))


class ContainerStates:
    """Which containers are gone or on their way. Threads may share one.

    Args:
        retention_seconds: how long after its deletion a container counts as gone; default two weeks.
        clock: where time comes from; a jump of it is accepted when a second reading confirms it.

    Raises:
        InvalidInput: the retention is negative.
    """

    def __init__(self, retention_seconds: float = 14 * 86_400.0, *, clock: Clock | None = None) -> None:
        if retention_seconds < 0:
            raise InvalidInput(f"retention_seconds is {retention_seconds}; give 0 or more")
        self._retention_seconds = retention_seconds
        self._clock = SteadyClock(clock)
        self._gone_at: dict[tuple[int, int], float] = {}

    def deactivate(self, account: int, container: int) -> None:
        """The container is inactive: its records may go at once."""
        self._gone_at[account, container] = float("-inf")

    def delete(self, account: int, container: int, deleted_at: float) -> None:
        """The deletion of the container was asked for at `deleted_at` (seconds since the epoch)."""
        self._gone_at[account, container] = deleted_at + self._retention_seconds

    def restore(self, account: int, container: int) -> None:
        """The container stays after all; what a compaction has dropped already does not come back."""
        self._gone_at.pop((account, container), None)

    def is_gone(self, entry: IndexEntry) -> bool:
        """Whether a record's container is gone for good; for `Questions.is_container_gone`."""
        gone_at = self._gone_at.get((entry.account, entry.container))
        return gone_at is not None and gone_at <= self._clock.steady()

    def audit(self) -> None:
        """Check that no time is none.

        Raises:
            AuditFailed: a container goes at a time that is not a number.
        """
        for (account, container), gone_at in self._gone_at.items():
            if math.isnan(gone_at):
                raise AuditFailed(f"container {container} of account {account} goes at a time that is not a number")

    def __repr__(self) -> str:
        return f"ContainerStates({len(self._gone_at)} containers not active)"
