"""Ranges as objects: writing, reading, caching, verifying and collecting them."""

__all__: list[str] = []
