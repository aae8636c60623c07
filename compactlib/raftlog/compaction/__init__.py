"""The compaction of a log: sense, plan, rewrite, commit, reclaim."""

__all__: list[str] = []
