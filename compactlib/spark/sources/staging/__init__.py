"""A branch of the staging area as a table."""

__all__: list[str] = []
