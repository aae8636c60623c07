"""Who compacts: the worker, its core without I/O, and how it talks to the scheduler."""
