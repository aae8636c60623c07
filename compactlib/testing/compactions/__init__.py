"""The conformance suite of `Compaction`."""
