# SPDX-License-Identifier: Apache-2.0
from compactlib.executors.process_executor import ProcessExecutor as ProcessExecutor
from compactlib.executors.tasks import LocalExecutor as LocalExecutor
from compactlib.rewrite import (
    Attempt as Attempt,
    Executor as Executor,
    RewriteFailure as RewriteFailure,
    RewriteResult as RewriteResult,
    RewriteTask as RewriteTask,
    RewrittenFile as RewrittenFile,
)
