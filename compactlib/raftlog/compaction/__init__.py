"""The compaction of a log: sense, plan, rewrite, commit, reclaim."""
