"""Policies of the blob store, replayed in memory."""
