# SPDX-License-Identifier: Apache-2.0
"""The compaction of a log: sense, plan, rewrite, commit, reclaim."""
