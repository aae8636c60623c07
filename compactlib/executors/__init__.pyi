# SPDX-License-Identifier: Apache-2.0
from compactlib.executors.process_executor import ProcessExecutor as ProcessExecutor
from compactlib.executors.tasks import (
    LocalExecutor as LocalExecutor,
    answers_of as answers_of,
    attempt_task as attempt_task,
    checked_names as checked_names,
    foreign_error as foreign_error,
    least_bytes as least_bytes,
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
