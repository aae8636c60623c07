"""How updates and state are stored."""

__all__: list[str] = []
