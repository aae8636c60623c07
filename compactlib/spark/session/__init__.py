"""Spark sessions: starting one, shipping the library to its workers, registering the data sources."""
