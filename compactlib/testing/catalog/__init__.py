"""A simulated cluster that compacts its catalog."""

__all__: list[str] = []
