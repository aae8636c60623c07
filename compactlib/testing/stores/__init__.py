"""The conformance suites of key-value stores, object stores and formats of ranges."""
