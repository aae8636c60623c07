# SPDX-License-Identifier: Apache-2.0
"""Executors: they run the heavy step of a compaction as tasks, in this process or in several."""

from compactlib._lazy import offer

offer(__name__)
