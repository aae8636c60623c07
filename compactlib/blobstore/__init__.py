"""A local blob store in a segmented log, with time to live, delete and undelete, compacted by policy."""

__all__: list[str] = []
