"""A simulated scheduler with its workers and replicas."""
