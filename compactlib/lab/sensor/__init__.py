"""The staging area's sensor, replayed in memory."""

__all__: list[str] = []
