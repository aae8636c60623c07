"""The values of the catalog: timestamps, partitions, needs and reports."""

__all__: list[str] = []
