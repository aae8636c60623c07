"""A compaction from its beginning to its end: cycles, events, reports."""
