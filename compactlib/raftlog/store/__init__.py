"""Many Raft logs behind one write-ahead log: `RaftLog` and `RaftLogStore`."""
