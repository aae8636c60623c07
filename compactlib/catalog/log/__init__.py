"""The update log: its format, its reading, recovery, and the removal of what a snapshot replaced."""
