# SPDX-License-Identifier: Apache-2.0
"""The compaction of a blob store: sense, plan, rewrite, commit; reclaim follows each commit."""
