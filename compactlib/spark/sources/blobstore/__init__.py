"""A blob store as a table."""

__all__: list[str] = []
