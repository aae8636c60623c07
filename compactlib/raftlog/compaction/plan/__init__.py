"""What is compacted: pure functions of a view, a policy and limits."""

__all__: list[str] = []
