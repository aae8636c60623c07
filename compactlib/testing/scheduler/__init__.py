"""A simulated scheduler with its workers and replicas."""

__all__: list[str] = []
