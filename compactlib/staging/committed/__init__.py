"""Committed records: their interface, and the implementation that keeps them as immutable ranges and metaranges."""
