"""The conformance suites of `Service` and `AsyncService`."""
