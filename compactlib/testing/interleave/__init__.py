# SPDX-License-Identifier: Apache-2.0
"""Concurrency tests: every interleaving of a few actors' steps, and pauses of an owner."""

from compactlib._lazy import offer

offer(__name__)
