"""The conformance suites of key-value stores, object stores and formats of ranges."""

__all__: list[str] = []
