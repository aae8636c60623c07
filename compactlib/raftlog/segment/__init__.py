# SPDX-License-Identifier: Apache-2.0
"""Segment files: their formats and indexes, reading one, appending to one, and the ordered set of a log's segments."""
