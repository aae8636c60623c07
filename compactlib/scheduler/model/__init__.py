"""The values of the scheduler: blocks, jobs, polls, updates, and what an assignment sees."""

__all__: list[str] = []
