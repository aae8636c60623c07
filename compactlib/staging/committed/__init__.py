# SPDX-License-Identifier: Apache-2.0
"""Committed records, kept as immutable ranges and metaranges."""
