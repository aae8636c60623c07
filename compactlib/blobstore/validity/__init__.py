# SPDX-License-Identifier: Apache-2.0
"""Liveness: which records of a blob a compaction keeps, until when (time to live), and which tombstones."""
