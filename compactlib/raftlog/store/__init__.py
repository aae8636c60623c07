"""Many durable Raft logs that share one write-ahead log: `RaftLog` and `RaftLogStore`."""
