"""Segments: their formats and indexes, reading and writing one, and the set of all that a log has."""
