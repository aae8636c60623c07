# SPDX-License-Identifier: Apache-2.0
"""Transfers of snapshots with their live entries: two state machines without I/O, and their messages as bytes.

`SnapshotSender` and `SnapshotReceiver` take messages, answers and time, and return effects; a host carries those out
(`compactlib.hosting.transfer` does, over sockets). See `docs/raftlog.md`.
"""
