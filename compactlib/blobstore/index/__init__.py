"""The index: its entries, its segments, and their files."""

__all__: list[str] = []
