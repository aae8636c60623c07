# SPDX-License-Identifier: Apache-2.0
"""A Raft log as a table, and as a stream of what a snapshot covers."""
