"""A compaction from its beginning to its end: cycles, events, reports."""

__all__: list[str] = []
