# SPDX-License-Identifier: Apache-2.0
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
from compactlib.outcome import Done as Done, Failed as Failed, Skipped as Skipped

__version__: str
