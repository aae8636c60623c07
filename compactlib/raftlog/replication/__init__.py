"""Transfers of snapshots with their live entries: two state machines without I/O, and their messages as bytes.

`SnapshotSender` and `SnapshotReceiver` take messages, answers and time, and return effects; a host carries those out
(`compactlib.hosting.transfer` does, over sockets). See `docs/raftlog-snapshots.md`.
"""

from compactlib.raftlog.replication.course import needed_entries
from compactlib.raftlog.replication.effects import (
    AwaitEntries,
    BeginInstall,
    DiscardInstall,
    Effect,
    Finished,
    InstallSnapshot,
    ReadEntries,
    ReadState,
    Send,
    TermSeen,
    TransferLimits,
    TransferOutcome,
    TransferStats,
    WriteEntries,
    WriteState,
)
from compactlib.raftlog.replication.errors import AbortReason, FrameDamaged, TransferAborted
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    Envelope,
    Installed,
    LiveChunk,
    Offer,
    Phase,
    Position,
    Probe,
    Progress,
    Refusal,
    SentEntry,
    StateChunk,
    TransferMessage,
    Unknown,
    Withdrawal,
)
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.sender import SnapshotSender
from compactlib.raftlog.snapshots.model import SnapshotManifest, StagedState

__all__ = [
    "AbortReason",
    "AwaitEntries",
    "BeginInstall",
    "DiscardInstall",
    "Effect",
    "EntryChunk",
    "Envelope",
    "Finished",
    "FrameDamaged",
    "InstallSnapshot",
    "Installed",
    "LiveChunk",
    "Offer",
    "Phase",
    "Position",
    "Probe",
    "Progress",
    "ReadEntries",
    "ReadState",
    "Refusal",
    "Send",
    "SentEntry",
    "SnapshotManifest",
    "SnapshotReceiver",
    "SnapshotSender",
    "StagedState",
    "StateChunk",
    "TermSeen",
    "TransferAborted",
    "TransferLimits",
    "TransferMessage",
    "TransferOutcome",
    "TransferStats",
    "Unknown",
    "Withdrawal",
    "WriteEntries",
    "WriteState",
    "needed_entries",
]
