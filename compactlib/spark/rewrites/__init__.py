# SPDX-License-Identifier: Apache-2.0
"""Rewrites made for Spark: merges of blocks and of staged changes, files that travel with a task."""
