"""The conformance suite of `Executor`."""
