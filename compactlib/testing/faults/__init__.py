"""Disks, stores and clocks that fail as told."""
