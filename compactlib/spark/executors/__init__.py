# SPDX-License-Identifier: Apache-2.0
"""Rewrites as Spark tasks: the executor, the worker's side, outcomes, and packing."""
