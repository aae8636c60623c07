"""Committed records: an interface, and the one that keeps them as ranges and metaranges."""
