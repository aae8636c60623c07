"""Snapshots of a state machine with their live sets: `SnapshotFolder`, and what the log needs of a machine.

See `docs/raftlog-snapshots.md`.
"""

from compactlib.raftlog.errors import LiveSetLost
from compactlib.raftlog.snapshots.folder import SnapshotFolder
from compactlib.raftlog.snapshots.machine import LiveTracker, StateMachine
from compactlib.raftlog.snapshots.model import SnapshotManifest, StagedState
from compactlib.raftlog.snapshots.staging import IncomingState
from compactlib.raftlog.snapshots.state_reader import StateReader

__all__ = [
    "IncomingState",
    "LiveSetLost",
    "LiveTracker",
    "SnapshotFolder",
    "SnapshotManifest",
    "StagedState",
    "StateMachine",
    "StateReader",
]
