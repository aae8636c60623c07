"""The scheduler with its workers, replayed in simulated time."""

__all__: list[str] = []
