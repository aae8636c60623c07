"""Decisions applied alike on every replica: one function of state and update."""
