# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a state machine with their live sets: their files, and what the log needs of a machine.

See `docs/raftlog.md`.
"""
