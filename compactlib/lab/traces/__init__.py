"""Operations: from traces, or made by a workload."""

__all__: list[str] = []
