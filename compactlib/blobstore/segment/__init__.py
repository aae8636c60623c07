"""Segments of the log: their head, their records, reading, scanning, appending, erasing in place."""

__all__: list[str] = []
