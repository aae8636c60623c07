"""SQLite as a key-value store."""

__all__: list[str] = []
