# SPDX-License-Identifier: Apache-2.0
"""What every kind of store answers to the commands: `StoreAt`, of which each kind fills in what it does its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from compactlib.app.terminal import Answer, waiting
from compactlib.errors import CompactionFailed, Unsupported
from compactlib.files import local_path
from compactlib.outcome import is_empty, raised
from compactlib.report import Table, VerifyReport

_SHOWN_NAMES = 5


def _path(given: str) -> str:
    path = local_path(given, "PATH")
    return path if given.lower().startswith("file:/") else given


@attrs.frozen(kw_only=True)
class Asked:
    """What a command line asks of a store.

    Attributes:
        path: where the store is.
        policy: name of the policy; default the kind's own.
        retention: for how many seconds a blob store's owner keeps deletes.
        branch: which branch of a repository.
        objects: the folder of a repository's ranges.
        partition: which of several repositories in one SQLite file.
        executor: name of the executor that copies.
        workers: how many tasks it runs at once; default its own.
        rate: how many bytes may be written a second.
        max_bytes: how many bytes may be written.
    """

    path: str = attrs.field(converter=_path)
    policy: str | None = None
    retention: float | None = None
    branch: str | None = None
    objects: str | None = None
    partition: str | None = None
    executor: str | None = None
    workers: int | None = None
    rate: int | None = None
    max_bytes: int | None = None

    @property
    def given(self) -> set[str]:
        """The names of the options that were given."""
        return {name for name, value in attrs.asdict(self).items() if value is not None} - {"path"}


class StoreAt(ABC):
    """A store at a path. Only `compact` changes it.

    Args:
        asked: what was asked of it.

    Attributes:
        kind: what it is called.
        unit: what `verify` counts.
    """

    kind: ClassVar[str]
    unit: ClassVar[str] = "records"

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.path: str = asked.path

    @abstractmethod
    def inspect(self) -> Answer:
        """What lies there."""

    @abstractmethod
    def planned(self) -> Any:
        """The plan of a compaction: `contract.Plan`."""

    @abstractmethod
    def chosen(self, plan: Any) -> tuple[list[Any], dict[str, list[str]]]:
        """What a plan takes, and for each reason what it leaves."""

    @abstractmethod
    def verified(self) -> VerifyReport:
        """Everything read and checked."""

    def compacted(self) -> Any:
        """Compact in this process; return the report.

        Raises:
            InvalidInput: this kind is compacted by others; says by whom.
        """
        raise NotImplementedError

    def plan(self) -> Answer:
        """What a compaction would do now."""
        made = self.planned()
        return Answer(made.to_dicts(), (made.table(),))

    def why(self) -> Answer:
        """Why a compaction would do what it would do now, or nothing."""
        made = self.planned()
        taken, left = self.chosen(made)
        data = {"path": self.path, "is_empty": made.is_empty, "policy": made.policy.name, "why": made.why,
                "taken": taken, "left": left}
        return Answer(data, (made.table().title, *(_left(reason, names) for reason, names in left.items())))

    def compact(self) -> Answer:
        """Compact, and say what was done.

        Raises:
            CompactlibError: nothing could be done; says why.
        """
        failed = ""
        try:
            report = raised(self.compacted())
        except CompactionFailed as error:
            failed, report = str(error), error.report
        if is_empty(report):
            return Answer([{"outcome": "skipped", "reason": report.why}], (f"skipped: {report.why}",))
        if getattr(report, "is_partial", False):
            failed = f"in part, and what was done stays: {report.why}"
        told = getattr(report, "report", None) or report
        rows = [{"outcome": "failed" if failed else "done", **row} for row in told.to_dicts()]
        table = told.table() if hasattr(told, "table") else Table.from_dicts(rows)
        return Answer(rows, (table, failed) if failed else (table,), int(bool(failed)))

    def verify(self) -> Answer:
        """Everything read, and what is damaged; the exit code is 1 if anything is."""
        with waiting("verifying"):
            report = self.verified()
        found = [finding.error for finding in report.findings if not finding.is_harmless]
        bad, others = len(found), sum(isinstance(error, Unsupported) for error in found)
        said = (f"{self.path}: {bad:,} damaged or missing; restore the files from a copy" if bad > others
                else f"{self.path}: {bad:,} written by another release; nothing is known to be damaged" if bad
                else f"{self.path}: {self.counted(report)} in {report.bytes_read:,} bytes, all as they were written")
        return Answer(report.to_dicts(), (*((report.table(),) if report.findings else ()), said), int(bad > 0))

    def counted(self, report: VerifyReport) -> str:
        """What a verification has read."""
        return f"{report.records:,} {self.unit}"

    def policy_of(self, policies: Sequence[Any]) -> Any:
        """The one that was asked for, by default the first."""
        return next((each for each in policies if each.name == self.asked.policy), policies[0])


def _left(reason: str, names: Sequence[str]) -> str:
    """How many are left by a reason, the first few by name."""
    if not names:
        return reason
    more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return f"{len(names):,} left, {reason}: {', '.join(names[:_SHOWN_NAMES])}{more}"
