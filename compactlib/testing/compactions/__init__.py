"""The conformance kit of `Compaction`: tests that any store which can be compacted inherits."""
