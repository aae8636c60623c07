"""Ready hosts that join the packages: a durable command log, the scheduler on top of it, a Raft library."""

from compactlib.hosting.command_log import CommandLog, CommandMachine
from compactlib.hosting.errors import LogBroken, NoAnswer, NotLeader, NotStarted, OutOfStep, PollAgain
from compactlib.hosting.local_log import LocalLog
from compactlib.hosting.raftlog_execute import RaftlogExecute, TheseSegments, segment_block_id, segment_of_block
from compactlib.hosting.scheduler_host import SchedulerHost, SchedulerMachine
from compactlib.hosting.snapshots import Snapshot, SnapshotStore

__all__ = [
    "CommandLog",
    "LocalLog",
    "LogBroken",
    "NoAnswer",
    "NotLeader",
    "NotStarted",
    "OutOfStep",
    "PollAgain",
    "RaftlogExecute",
    "SchedulerHost",
    "SchedulerMachine",
    "Snapshot",
    "SnapshotStore",
    "CommandMachine",
    "TheseSegments",
    "segment_block_id",
    "segment_of_block",
]
