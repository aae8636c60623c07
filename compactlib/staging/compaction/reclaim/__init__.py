"""Garbage collection: finding and deleting tokens, ranges and metaranges that no branch reaches."""
