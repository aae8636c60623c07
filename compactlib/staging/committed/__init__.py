"""Committed records: an interface, and the one that keeps them as ranges and metaranges."""

__all__: list[str] = []
