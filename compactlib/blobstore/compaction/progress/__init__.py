"""The durable log of a compaction: what is going on, how far it is, what was finished."""
