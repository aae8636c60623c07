# SPDX-License-Identifier: Apache-2.0
"""compactlib: embeddable compaction primitives.

Each design is a package of its own (`compactlib.raftlog`, ...) and is imported by name. This module offers the
version and the tree of exceptions, and loads nothing else.
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

__version__ = "0.1.0"
"""The release, `major.minor.patch`; CHANGELOG.md says what each part promises."""

if TYPE_CHECKING:
    from compactlib.errors import (
        AuditFailed as AuditFailed,
        BudgetSpent as BudgetSpent,
        Busy as Busy,
        Closed as Closed,
        CompactionFailed as CompactionFailed,
        CompactlibError as CompactlibError,
        Conflict as Conflict,
        CorruptData as CorruptData,
        InvalidInput as InvalidInput,
        MissingDependency as MissingDependency,
        NotFound as NotFound,
        Rejected as Rejected,
        Stale as Stale,
        StorageError as StorageError,
        TaskFailed as TaskFailed,
        Unsupported as Unsupported,
    )
else:
    offer(__name__, {
        "compactlib.errors":
            "AuditFailed BudgetSpent Busy Closed CompactionFailed CompactlibError Conflict CorruptData InvalidInput "
            "MissingDependency NotFound Rejected Stale StorageError TaskFailed Unsupported",
    })
