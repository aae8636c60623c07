"""The staging area's sensor, replayed in memory."""
