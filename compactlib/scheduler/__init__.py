"""Compaction jobs fenced by the Raft log index."""
