# SPDX-License-Identifier: Apache-2.0
"""Decisions applied alike on every replica: one function of state and update."""
