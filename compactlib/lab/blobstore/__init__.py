"""Policies of the blob store, replayed in memory."""

__all__: list[str] = []
