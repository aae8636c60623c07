"""The values of the manager: its settings, what it hands out and answers, and what it knows of each store."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from compactlib.blobstore.triggers import Trigger
from compactlib.errors import InvalidInput

Cause: TypeAlias = Literal["admin", "resume", "retry", "periodic"]
"""Why a store's turn has come."""
StoreCondition: TypeAlias = Literal["running", "queued", "failing", "waiting", "disabled", "not started"]
"""Where a store stands; `failing` means that it waits to be tried again."""

@attrs.frozen(kw_only=True)
class ManagerSettings:
    """When stores are looked at.

    Attributes:
        triggers: what brings a store its turn. Interrupted compactions are resumed and failed runs are tried again
            whatever the triggers are.
        check_seconds: time from one periodic check of a store to the next, > 0.
        retry_seconds: wait after a first failure, > 0.
        max_retry_seconds: the longest wait after a failure, at least `retry_seconds`.

    Raises:
        InvalidInput: a time is out of its range.
    """

    triggers: frozenset[Trigger] = frozenset()
    check_seconds: float = 7 * 86_400.0
    retry_seconds: float = 60.0
    max_retry_seconds: float = 6 * 3_600.0

    def __attrs_post_init__(self) -> None:
        if not (self.check_seconds > 0 and 0 < self.retry_seconds <= self.max_retry_seconds < float("inf")):
            raise InvalidInput(f"check_seconds {self.check_seconds}, retry_seconds {self.retry_seconds}, "
                               f"max_retry_seconds {self.max_retry_seconds}: each is above 0, and the last is the "
                               f"larger of the two")


@attrs.frozen
class Run:
    """What the edge shall do now: work on one store.

    Attributes:
        store: its name.
        disk: the disk that is busy until `finished` is told.
        cause: why now.
        checks: whether to ask the policy and compact, after resuming what is in progress; else only to resume.
    """

    store: str
    disk: str
    cause: Cause
    checks: bool


@attrs.frozen
class Accepted:
    """An admin's request was taken.

    Attributes:
        store: whose.
        state: `"queued"`; `"already queued"`, so that nothing was added; or `"running"`, it is being looked at now.
    """

    store: str
    state: Literal["queued", "already queued", "running"]


@attrs.frozen
class Refused:
    """What was asked cannot be done, and nothing was changed.

    Attributes:
        store: whose.
        reason: why, and what to do.
    """

    store: str
    reason: str


@attrs.frozen
class Removed:
    """A store is not looked after any more; the store itself is as it was.

    Attributes:
        store: whose name is free again.
    """

    store: str


@attrs.define
class StoreEntry:
    """What the manager knows of one store.

    Attributes:
        name: the store's name.
        disk: where it lies.
        enabled: whether it may be compacted.
        started: whether it is open.
        asked: number of the admin's request that waits, or `None`.
        owes_resume: an interrupted compaction may be waiting.
        owes_check: the policy is to be asked.
        due_at: since when.
        next_check_at: when the next periodic check comes due.
        failures: failed runs in a row.
        retry_at: when the next try comes due.
        busy_until: until when it is left alone because somebody else was compacting it.
        running: what is being done with it.
        finished_at: when the last run ended, or `None`.
        outcome: what it ended in: `"done"`, `"skipped"`, `"failed"`, `"stopped"`, or `""`.
        told: the report, the reason or the error of the last run in words.
        compactions: how many runs compacted something.
    """

    name: str
    disk: str
    enabled: bool
    started: bool
    next_check_at: float
    asked: int | None = None
    owes_resume: bool = True
    owes_check: bool = False
    due_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    busy_until: float = 0.0
    running: Run | None = None
    finished_at: float | None = None
    outcome: str = ""
    told: str = ""
    compactions: int = 0

    @property
    def may_run(self) -> bool:
        """Whether the manager may work on it."""
        return self.enabled and self.started

    @property
    def condition(self) -> StoreCondition:
        """Where it stands."""
        if self.running is not None:
            return "running"
        if not self.started:
            return "not started"
        if not self.enabled:
            return "disabled"
        if self.asked is None and self.failures:
            return "failing"
        return "queued" if self.asked is not None or self.owes_resume or self.owes_check else "waiting"
