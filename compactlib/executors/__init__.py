# SPDX-License-Identifier: Apache-2.0
"""Executors: they run the heavy step of a compaction as tasks, in this process or in several."""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
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
else:
    offer(__name__, {
        "compactlib.executors.process_executor": "ProcessExecutor",
        "compactlib.executors.tasks": "LocalExecutor",
        "compactlib.rewrite": "Attempt Executor RewriteFailure RewriteResult RewriteTask RewrittenFile",
    })
