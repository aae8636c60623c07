"""What the leader decides: which blocks become a job, and which jobs a worker is given."""
