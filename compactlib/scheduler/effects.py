"""What applying one command does besides changing jobs: tombstones, quarantine, events, corrected answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compactlib.scheduler.model import BlockMeta, BlockTombstones, Command, JobPlan, Tombstone
from compactlib.scheduler.poll import Verdict
from compactlib.scheduler.results import by_place
from compactlib.scheduler.state import QuarantinedJob, SchedulerState


class Effects:
    """The state and the command that is being applied to it.

    Attributes:
        state: what is changed.
        command: gives index and time.
        verdicts: answers that turned out otherwise than prepared, by job.
        events: what a host may want to know: name and fields.
    """

    def __init__(self, state: SchedulerState, command: Command) -> None:
        self.state: SchedulerState = state
        self.command: Command = command
        self.verdicts: dict[str, Verdict] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []

    def delete_later(self, tombstone: Tombstone) -> None:
        """Add a tombstone."""
        self.state.tombstones.add(self.command, tombstone)

    def throw_away(self, job: str, blocks: Iterable[BlockMeta]) -> None:
        """Delete blocks that a worker wrote for a job, except those that somebody owns.

        Without a metadata index nobody can tell, so nothing is deleted.
        """
        index, tombstones = self.state.index, self.state.tombstones
        if index is None:
            return
        unowned = tuple(block for block in blocks if index.get(block.tenant, block.shard, block.id) is None
                        and not tombstones.exists(block.tenant, block.shard, block.id))
        for (tenant, shard, level), ids in by_place(unowned).items():
            name = f"{job} refused at {self.command.index} ({tenant} {level})"
            self.delete_later(BlockTombstones(name=name, tenant=tenant, shard=shard, level=level, blocks=tuple(ids)))
        if unowned:
            self.events.append(("scheduler_outputs_refused", {"job": job, "blocks": len(unowned)}))

    def quarantine(self, plan: JobPlan, reason: str, failures: int, orphans: tuple[BlockMeta, ...] = ()) -> None:
        """Put a job where an operator sees it; if there is no room, the oldest one goes."""
        state = self.state
        state.quarantine[plan.name] = QuarantinedJob(plan=plan, reason=reason, failures=failures,
                                                     since=self.command.appended_at, orphans=orphans)
        self.events.append(("scheduler_job_quarantined", {"job": plan.name, "reason": reason, "failures": failures,
                                                          "blocks": len(plan.source_blocks)}))
        while len(state.quarantine) > state.config.max_quarantine_size:
            name = next(iter(state.quarantine))
            gone = state.quarantine.pop(name)
            state.quarantine_dropped += 1
            self.throw_away(name, gone.orphans)
            self.events.append(("scheduler_quarantine_dropped", {"job": name, "blocks": len(gone.plan.source_blocks)}))
