# SPDX-License-Identifier: Apache-2.0
"""Executors: run the tasks of a compaction's rewrite, in threads or in processes."""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.executors.process_executor import ProcessExecutor as ProcessExecutor
    from compactlib.executors.tasks import (
        CarriedEvents as CarriedEvents,
        LocalExecutor as LocalExecutor,
        answers_of as answers_of,
        attempt_task as attempt_task,
        checked_names as checked_names,
        foreign_error as foreign_error,
        new_attempt_id as new_attempt_id,
        own_error as own_error,
        portable as portable,
        portable_error as portable_error,
    )
    from compactlib.rewrite import (
        Attempt as Attempt,
        Executor as Executor,
        RewriteFailure as RewriteFailure,
        RewriteResult as RewriteResult,
        RewriteTask as RewriteTask,
        RewrittenFile as RewrittenFile,
    )
else:
    offer(__name__, {
        "compactlib.executors.process_executor": "ProcessExecutor",
        "compactlib.executors.tasks":
            "CarriedEvents LocalExecutor answers_of attempt_task checked_names foreign_error new_attempt_id own_error "
            "portable portable_error",
        "compactlib.rewrite": "Attempt Executor RewriteFailure RewriteResult RewriteTask RewrittenFile",
    })
