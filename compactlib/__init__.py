"""compactlib: embeddable compaction primitives.

Each design is a package of its own (`compactlib.raftlog`, ...) and is imported by name. This module holds only the
version and the tree of exceptions, and loads nothing else.
"""

from __future__ import annotations

from compactlib.errors import (
    AuditFailed,
    BudgetSpent,
    Busy,
    ClockJumped,
    Closed,
    CompactlibError,
    Conflict,
    CorruptData,
    DiskFull,
    InvalidInput,
    LiveAboveSnapshot,
    LiveIndexMissing,
    MissingDependency,
    NotALog,
    NotFound,
    ReadOnly,
    Stale,
    StorageError,
    TaskFailed,
    Unsorted,
    Unsupported,
)

__version__ = "0.1.0"
"""The release, `major.minor.patch`; CHANGELOG.md says what each part promises."""

__all__ = [
    "AuditFailed",
    "BudgetSpent",
    "Busy",
    "ClockJumped",
    "Closed",
    "CompactlibError",
    "Conflict",
    "CorruptData",
    "DiskFull",
    "InvalidInput",
    "LiveAboveSnapshot",
    "LiveIndexMissing",
    "MissingDependency",
    "NotALog",
    "NotFound",
    "ReadOnly",
    "Stale",
    "StorageError",
    "TaskFailed",
    "Unsorted",
    "Unsupported",
    "__version__",
]
