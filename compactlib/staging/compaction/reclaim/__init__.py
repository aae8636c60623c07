# SPDX-License-Identifier: Apache-2.0
"""Garbage collection: finding and deleting tokens, ranges and metaranges that no branch reaches."""
