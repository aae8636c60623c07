"""A Raft log as a table, and as a stream of what a snapshot covers."""
