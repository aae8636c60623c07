"""The compaction of a branch: sense, plan, rewrite, commit, reclaim."""
