# SPDX-License-Identifier: Apache-2.0
"""Ready hosts that join the packages: a durable command log, the scheduler on top of it, a Raft library."""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.hosting.command_log import CommandLog as CommandLog, CommandMachine as CommandMachine
    from compactlib.hosting.errors import (
        LogBroken as LogBroken,
        NoAnswer as NoAnswer,
        NotLeader as NotLeader,
        NotStarted as NotStarted,
        PollAgain as PollAgain,
    )
    from compactlib.hosting.http.application import SchedulerApplication as SchedulerApplication
    from compactlib.hosting.http.client import SchedulerClient as SchedulerClient
    from compactlib.hosting.local_log import LocalLog as LocalLog
    from compactlib.hosting.raftlog_execute import (
        RaftlogExecute as RaftlogExecute,
        segment_block_id as segment_block_id,
    )
    from compactlib.hosting.scheduler_host import SchedulerHost as SchedulerHost
    from compactlib.kv.snapshots import SnapshotStore as SnapshotStore
    from compactlib.scheduler.service.machine import SchedulerMachine as SchedulerMachine
else:
    offer(__name__, {
        "compactlib.hosting.command_log": "CommandLog CommandMachine",
        "compactlib.hosting.errors": "LogBroken NoAnswer NotLeader NotStarted PollAgain",
        "compactlib.hosting.http.application": "SchedulerApplication",
        "compactlib.hosting.http.client": "SchedulerClient",
        "compactlib.hosting.local_log": "LocalLog",
        "compactlib.hosting.raftlog_execute": "RaftlogExecute segment_block_id",
        "compactlib.hosting.scheduler_host": "SchedulerHost",
        "compactlib.kv.snapshots": "SnapshotStore",
        "compactlib.scheduler.service.machine": "SchedulerMachine",
    })
