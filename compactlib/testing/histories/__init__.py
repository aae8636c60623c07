"""Hypothesis strategies for histories of logs, blob stores, branches and schedulers."""
