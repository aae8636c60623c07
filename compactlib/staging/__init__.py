"""Branches over a key-value store: uncommitted changes in staging tokens, committed ones in immutable ranges."""

__all__: list[str] = []
