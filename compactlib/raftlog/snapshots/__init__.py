"""Snapshots of a state machine."""
