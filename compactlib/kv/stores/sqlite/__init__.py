"""SQLite as a key-value store."""
