# SPDX-License-Identifier: Apache-2.0
"""Checks the invariants of a scheduler's state."""

from __future__ import annotations

from collections import Counter

from compactlib.errors import AuditFailed
from compactlib.scheduler import SchedulerMachine


def audit(machine: SchedulerMachine) -> None:
    """Check that all counts and orders match the stored form, and that no block is in two places.

    Raises:
        AuditFailed: an invariant does not hold; the message has the numbers.
    """
    again = SchedulerMachine()
    again.load(machine.dump())
    for part in ("index", "blocks", "jobs", "tombstones"):
        mine, stored = vars(getattr(machine, part)), vars(getattr(again, part))
        for name in mine:
            if mine[name] != stored[name]:
                raise AuditFailed(f"{part}: {name} is {mine[name]!r:.300}; by the stored blocks it is "
                                  f"{stored[name]!r:.300}")
    owners = Counter((job.plan.place, block_id) for job in machine.jobs for block_id in job.plan.source_blocks)
    for (place, block_id), count in owners.items():
        if count > 1 or machine.blocks.holds(place, block_id):
            raise AuditFailed(f"block {block_id!r} of {place} is in {count} jobs, or queued as well")
    ends = sorted({job.lease_expires_at for job in machine.jobs})
    for now in (0.0, *ends[::max(1, len(ends) // 2)]):
        phases = Counter((job.plan.compaction_level, phase.value) for phase, job in machine.jobs.phases(now))
        told = Counter({(row["level"], name): row[name] for row in machine.stats(now) for name in row
                        if name not in ("level", "waiting blocks")})
        if +told != phases:
            raise AuditFailed(f"jobs at {now}: the stats count {+told}, one by one they are {phases}")
    newest = max((job.token for job in machine.jobs), default=0)
    if newest > machine.applied_index:
        raise AuditFailed(f"a job has token {newest}, the last command is {machine.applied_index}")
