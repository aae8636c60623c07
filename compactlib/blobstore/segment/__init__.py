"""Segments of the log: their head, their records, reading, scanning, appending, erasing in place."""
