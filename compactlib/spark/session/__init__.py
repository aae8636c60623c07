"""A session, and the library on its workers."""
