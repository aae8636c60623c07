"""Versions of a schema: descriptors, the commands that change them, and the history of all."""
