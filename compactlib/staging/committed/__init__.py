"""Committed records, kept as immutable ranges and metaranges."""
