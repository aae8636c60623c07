"""A session, and the library on its workers."""

__all__: list[str] = []
