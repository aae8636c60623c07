"""A blob store as a table."""
