"""Policies and triggers of the Raft log, replayed in memory."""

__all__: list[str] = []
