"""Many Raft logs behind one write-ahead log: `RaftLog` and `RaftLogStore`."""

__all__: list[str] = []
