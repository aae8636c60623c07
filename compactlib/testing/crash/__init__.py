"""Crash states: every prefix of what was written, every loss that is allowed, and kills."""
