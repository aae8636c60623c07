"""Fences: a commit with an older token is refused."""
