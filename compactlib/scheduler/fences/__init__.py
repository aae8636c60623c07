"""Fences: a commit with an older token is refused."""

__all__: list[str] = []
