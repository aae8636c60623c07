"""A branch of the staging area as a table."""
