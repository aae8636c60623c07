# SPDX-License-Identifier: Apache-2.0
"""The compaction of a branch: sense, plan, rewrite, commit, reclaim."""
