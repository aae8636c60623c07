"""What can be done on a branch: read, write, list, commit, reset, merge."""
