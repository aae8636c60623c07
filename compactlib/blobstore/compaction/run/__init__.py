# SPDX-License-Identifier: Apache-2.0
"""A compaction from its beginning to its end: cycles, events, reports."""
