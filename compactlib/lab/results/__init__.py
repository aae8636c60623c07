"""Experiments, their measures, reports and plots."""

__all__: list[str] = []
