# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a state machine: their files, and the protocol of the machine."""
