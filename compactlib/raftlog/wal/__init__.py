"""The write-ahead log that all logs of a store share: one file at a time, one fsync for what many threads append."""

from compactlib.raftlog.wal.frames import Frame, FrameKind
from compactlib.raftlog.wal.recovery import RecoveredWal, recover_wal
from compactlib.raftlog.wal.rules import Dropped, Resend, Verdict, Write, WriterState, judge
from compactlib.raftlog.wal.wal import Confirmed, Wal, WalOptions

__all__ = [
    "Confirmed",
    "Dropped",
    "Frame",
    "FrameKind",
    "RecoveredWal",
    "Resend",
    "Verdict",
    "Wal",
    "WalOptions",
    "Write",
    "WriterState",
    "judge",
    "recover_wal",
]
