"""The index from blob ids to records in the log: its entries, sealed index segments, and their files."""
