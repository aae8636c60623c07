"""How messages travel, and the edge around a node: timers, threads, sockets."""
