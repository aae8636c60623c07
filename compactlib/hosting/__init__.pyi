# SPDX-License-Identifier: Apache-2.0
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
from compactlib.hosting.log_election import LogElection as LogElection
from compactlib.hosting.raftlog_execute import RaftlogExecute as RaftlogExecute, segment_block_id as segment_block_id
from compactlib.hosting.scheduler_host import SchedulerHost as SchedulerHost
from compactlib.hosting.transfer.sending import SnapshotClient as SnapshotClient
from compactlib.hosting.transfer.serving import SnapshotServer as SnapshotServer
from compactlib.kv.snapshots import SnapshotStore as SnapshotStore
from compactlib.scheduler.service.machine import SchedulerMachine as SchedulerMachine
