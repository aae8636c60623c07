"""The conformance kit of `Executor`: tests that any executor inherits."""
