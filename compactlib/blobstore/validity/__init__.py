"""What is alive: the verdict on each record, how long it lives, and tombstones."""
