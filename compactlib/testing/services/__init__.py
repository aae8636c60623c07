"""The conformance suites of `Service` and `AsyncService`."""

__all__: list[str] = []
