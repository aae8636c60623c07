"""The conformance suite of `Executor`."""

__all__: list[str] = []
