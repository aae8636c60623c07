# SPDX-License-Identifier: Apache-2.0
"""Rewrites as Spark tasks: the executors, the worker's side, outcomes, packing, and a simulation."""
