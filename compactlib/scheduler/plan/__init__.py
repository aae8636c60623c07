"""What the leader decides: which blocks become a job, and which jobs a worker is given."""

__all__: list[str] = []
