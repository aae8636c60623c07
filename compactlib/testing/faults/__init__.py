"""Disks, stores and clocks that fail as told."""

__all__: list[str] = []
