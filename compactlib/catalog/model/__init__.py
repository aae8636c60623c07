"""The values of the catalog: timestamps, partitions, needs and reports."""
