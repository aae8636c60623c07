"""Operations: from traces, or made by a workload."""
