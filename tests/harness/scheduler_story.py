# SPDX-License-Identifier: Apache-2.0
"""Plays a story of the scheduler: commands, and after `----` their results.

    levels 2/30 2/30          batches of 2 blocks, flushed after 30 seconds; also `set lease_seconds=15 ...`
    push A 1 0 a b c          tenant, shard, level, blocks
    poll ann 2                a worker polls with room for 2; it may add, each for a job named by its sources:
        renew a,b   done a,b > x y   empty a,b   missing a,b   failed a,b why   released a,b   cleaned t
    prepare ann 2 ...         the first phase alone; `apply` does the second
    time +10    term 2    tick    retain 100    requeue a,b    configure max_failures=5
    show                      every job with its phase, the quarantine and the tombstones

A job is named by its sources everywhere, for brevity. Tokens are the numbers of commands; each line but `show`, `time`,
`term` and settings is a command.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs

from compactlib.commandlog import Command
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    Configure,
    JobPlan,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    PollResponse,
    Requeue,
    Retain,
    SchedulerConfig,
    SchedulerMachine,
    StatusUpdate,
)
from tests.harness.scheduler_audit import audit


def _settings(words: tuple[str, ...]) -> dict[str, Any]:
    pairs = dict(word.split("=") for word in words)
    return {name: float(value) if "." in value else int(value) for name, value in pairs.items()}


_REPORTS = {"renew": JobStatus.IN_PROGRESS, "done": JobStatus.SUCCESS, "empty": JobStatus.SUCCESS,
            "missing": JobStatus.SUCCESS, "failed": JobStatus.FAILED, "released": JobStatus.RELEASED}


class Story:
    """The player of one story."""

    def __init__(self) -> None:
        self._config = SchedulerConfig(levels=(LevelConfig(max_blocks=2),), cleanup_delay_seconds=60)
        self._service = SchedulerMachine(self._config)
        self._index = 0
        self._term = 1
        self._now = 0.0
        self._held: dict[tuple[str, str], tuple[JobPlan, int]] = {}
        self._names: dict[str, str] = {}
        self._prepared: tuple[str, Any] | None = None

    def run(self, text: str) -> None:
        """Play all commands; the first other result than in the story is an AssertionError."""
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        number = 0
        for block in re.split(r"\n\s*\n", "\n".join(lines).strip()):
            commands, _, expected = block.partition("\n----\n")
            output: list[str] = []
            for line in commands.splitlines():
                number += 1
                output += self._command(line.split())
                audit(self._service)
            if "----" in block:
                assert "\n".join(output) == expected.strip(), f"command {number}: {commands}"
            else:
                assert output == [], f"command {number}: {commands}"

    def _command(self, words: list[str]) -> list[str]:
        play: Callable[..., list[str]] = getattr(self, "_term_" if words[0] == "term" else f"_{words[0]}")
        return play(*words[1:])

    # ------------------------------------------------------------------------------------------------- commands

    def _levels(self, *limits: str) -> list[str]:
        parts = [limit.split("/") for limit in limits]
        return self._begin(levels=tuple(LevelConfig(max_blocks=int(blocks), max_age_seconds=float(age))
                                        for blocks, age in parts))

    def _set(self, *settings: str) -> list[str]:
        return self._begin(**_settings(settings))

    def _configure(self, *settings: str) -> list[str]:
        return self._apply_now(Configure(attrs.evolve(self._service.config, **_settings(settings))))

    def _begin(self, **changes: Any) -> list[str]:
        assert self._index == 0, "settings come first"
        self._config = attrs.evolve(self._config, **changes)
        self._service = SchedulerMachine(self._config)
        return []

    def _time(self, step: str) -> list[str]:
        self._now += float(step)
        return []

    def _term_(self, term: str) -> list[str]:
        self._term = int(term)
        return []

    def _push(self, tenant: str, shard: str, level: str, *ids: str) -> list[str]:
        return self._apply_now(AddBlocks(tuple(
            BlockMeta(id=block_id, tenant=tenant, shard=int(shard), level=int(level), min_time=self._now + 1e-3,
                      max_time=self._now + 1e-3) for block_id in ids)))

    def _retain(self, before: str) -> list[str]:
        return self._apply_now(Retain(float(before)))

    def _requeue(self, sources: str) -> list[str]:
        return self._apply_now(Requeue((self._names.get(sources, sources),)))

    def _poll(self, worker: str, capacity: str, *reports: str) -> list[str]:
        before = self._prepared
        self._prepare(worker, capacity, *reports)
        found = self._apply()
        self._prepared = before
        return found

    def _prepare(self, worker: str, capacity: str, *reports: str) -> list[str]:
        command = self._next()
        updates, cleaned = self._reports(worker, list(reports))
        request = PollRequest(tuple(updates), int(capacity), tuple(cleaned))
        self._prepared = worker, self._service.prepare(command, request)[0]
        self._index -= 1
        return []

    def _apply(self) -> list[str]:
        assert self._prepared is not None
        worker, update = self._prepared
        result = self._service.carry_out(self._next(), update)
        return self._answered(worker, result) if isinstance(result, PollResponse) else self._told(result)

    def _show(self) -> list[str]:
        found = [f"{self._called(job.plan)}: {phase.value}" + (f", {job.failures} failures" if job.failures else "")
                 for phase, job in self._service.jobs.phases(self._now)]
        found += [f"quarantine: {','.join(one.plan.source_blocks)}: {one.reason}"
                  for one in self._service.quarantine.values()]
        found += sorted(f"tombstone: {self._spelt(entry.tombstone)}" for entry in self._service.tombstones)
        return found or ["nothing"]

    # -------------------------------------------------------------------------------------------------- details

    def _next(self) -> Command:
        self._index += 1
        return Command(self._index, self._term, self._now)

    def _apply_now(self, operation: AddBlocks | Retain | Requeue | Configure) -> list[str]:
        return self._told(self._service.carry_out(self._next(), operation))

    def _reports(self, worker: str, words: list[str]) -> tuple[list[StatusUpdate], list[str]]:
        updates: list[StatusUpdate] = []
        cleaned: list[str] = []
        while words:
            kind, sources = words.pop(0), words.pop(0)
            if kind == "cleaned":
                cleaned.append(self._names.get(sources, sources))
                continue
            plan, token = self._held[worker, sources]
            outputs: list[str] = []
            if kind == "done":
                assert words.pop(0) == ">"
                while words and words[0] not in {*_REPORTS, "cleaned"}:
                    outputs.append(words.pop(0))
            reason = words.pop(0) if kind == "failed" else ""
            updates.append(StatusUpdate(plan.name, token, _REPORTS[kind], self._results(kind, plan, outputs), reason))
        return updates, cleaned

    def _results(self, kind: str, plan: JobPlan, outputs: list[str]) -> CompactedBlocks | None:
        if kind not in ("done", "empty", "missing"):
            return None
        return CompactedBlocks(
            tenant=plan.tenant, shard=plan.shard, source_blocks=() if kind == "missing" else plan.source_blocks,
            new_blocks=tuple(BlockMeta(id=name, tenant=plan.tenant, shard=plan.shard, level=plan.compaction_level + 1,
                                       min_time=self._now + 1e-3, max_time=self._now + 1e-3) for name in outputs),
            no_output={"empty": NoOutput.EMPTY, "missing": NoOutput.MISSING}.get(kind))

    def _answered(self, worker: str, response: PollResponse) -> list[str]:
        plans = {plan.name: plan for plan in response.compaction_jobs}
        found = []
        for answer in response.answers:
            until = "" if answer.holder_deadline is None else f", leased until {answer.holder_deadline:g}"
            detail = f" ({answer.detail})" if answer.detail else ""
            found.append(f"{self._sources_of(answer.name)}: {answer.verdict.value}{until}{detail}")
        for lease in response.assignments:
            if lease.name in plans:
                plan = plans[lease.name]
                called = self._called(plan)
                self._held[worker, called] = plan, lease.token
                found.append(f"{worker} gets {called}, token {lease.token} until {lease.lease_expires_at:g}")
        found += [f"{worker} deletes {self._spelt(tombstone)}" for tombstone in response.tombstones]
        return found or [f"{worker} gets nothing"]

    def _called(self, plan: JobPlan) -> str:
        called = ",".join(plan.source_blocks)
        self._names[called] = plan.name
        return called

    def _sources_of(self, name: str) -> str:
        return next((called for called, known in self._names.items() if known == name), name)

    def _spelt(self, tombstone: Any) -> str:
        self._names.setdefault(",".join(tombstone.blocks), tombstone.name)
        return ",".join(tombstone.blocks)

    @staticmethod
    def _told(result: Any) -> list[str]:
        match type(result).__name__:
            case "BlocksAdded":
                fates = attrs.asdict(result, recurse=False)
                return [f"{fate} {' '.join(ids)}" for fate, ids in fates.items() if ids and fate != "queued"]
            case "Retained":
                return [f"removed {result.blocks}"]
            case "Requeued":
                return [f"queued {result.blocks} again, {len(result.unknown)} unknown"]
            case "PollAgain":
                return [f"refused: prepared in term {result.prepared}, now {result.found}"]
        return []
