"""The scheduler with its workers, replayed in simulated time."""
