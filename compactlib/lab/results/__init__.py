"""Experiments, their measures, reports and plots."""
