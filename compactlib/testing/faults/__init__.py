# SPDX-License-Identifier: Apache-2.0
"""Fault injection: disks, stores and clocks that fail where a test says."""
