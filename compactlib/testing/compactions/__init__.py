"""The conformance suite of `Compaction`."""

__all__: list[str] = []
