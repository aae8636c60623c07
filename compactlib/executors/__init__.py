"""The heavy step as tasks, and who runs them: this process, or several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.executors.process_executor import ProcessExecutor
    from compactlib.executors.tasks import (
        MAX_DETAIL_CHARS,
        MAX_MESSAGE_CHARS,
        MAX_NAME_CHARS,
        LocalExecutor,
        attempt_task,
        checked_names,
        foreign_error,
        new_attempt_id,
        portable,
    )
    from compactlib.rewrite import (
        Attempt,
        Executor,
        RewriteFailure,
        RewriteOutcome,
        RewriteResult,
        RewriteTask,
        RewrittenFile,
    )

__all__ = [
    "Attempt",
    "Executor",
    "LocalExecutor",
    "MAX_DETAIL_CHARS",
    "MAX_MESSAGE_CHARS",
    "MAX_NAME_CHARS",
    "ProcessExecutor",
    "RewriteFailure",
    "RewriteOutcome",
    "RewriteResult",
    "RewriteTask",
    "RewrittenFile",
    "attempt_task",
    "checked_names",
    "foreign_error",
    "new_attempt_id",
    "portable",
]

load_lazily(__name__, {
    ".process_executor": ("ProcessExecutor",),
    ".tasks": ("LocalExecutor", "MAX_DETAIL_CHARS", "MAX_MESSAGE_CHARS", "MAX_NAME_CHARS", "attempt_task",
               "checked_names", "foreign_error", "new_attempt_id", "portable"),
    "compactlib.rewrite": ("Attempt", "Executor", "RewriteFailure", "RewriteOutcome", "RewriteResult", "RewriteTask",
                           "RewrittenFile"),
})
