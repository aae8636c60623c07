"""Fault injection: disks, stores and clocks that fail where a test says."""
