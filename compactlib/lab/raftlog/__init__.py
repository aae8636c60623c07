"""Policies and triggers of the Raft log, replayed in memory."""
