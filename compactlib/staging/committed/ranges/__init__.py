"""Ranges as objects: writing, reading, caching, verifying and collecting them."""
