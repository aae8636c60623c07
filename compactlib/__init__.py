"""compactlib: embeddable compaction primitives."""
