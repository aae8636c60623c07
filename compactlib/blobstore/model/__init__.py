"""The values of a blob store: ids, entries, names of segments, pace and breath."""
