"""The stored form of updates and state: codecs, rows of a snapshot, settings."""
