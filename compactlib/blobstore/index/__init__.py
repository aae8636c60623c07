"""The index: its entries, its segments, and their files."""
