# SPDX-License-Identifier: Apache-2.0
"""Many durable Raft logs that share one write-ahead log: `RaftLog` and `RaftLogStore`."""
