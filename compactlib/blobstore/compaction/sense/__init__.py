"""When a compaction pays: statistics of what is alive, kept and looked at again."""
