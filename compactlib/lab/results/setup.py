"""`Setup`: what policies are tried on. The settings of each kind of replay are one; so can be your own."""

from __future__ import annotations

from typing import Protocol, TypeVar

from compactlib.lab.results.reports import Report
from compactlib.runtime.observe import Observer

PolicyT_contra = TypeVar("PolicyT_contra", contravariant=True)
WorkloadT_contra = TypeVar("WorkloadT_contra", contravariant=True)
PolicyT = TypeVar("PolicyT")
WorkloadT = TypeVar("WorkloadT")


class Setup(Protocol[PolicyT_contra, WorkloadT_contra]):
    """A replay with its settings. Picklable, so that it can run elsewhere.

    `BlobSettings`, `RaftLogSettings`, `SchedulerSettings` and `SensorSettings` are setups. A class of your own that has
    these methods is one too: `compare`, `sweep` and `run_experiments` take it.
    """

    def replay(self, workload: WorkloadT_contra, policy: PolicyT_contra, *, seed: int,
               observer: Observer | None = None) -> Report:
        """What the policy makes of the workload; equal arguments give equal reports."""

    def read_report(self, text: str) -> Report:
        """The report of which `Report.to_json` gave this text."""

    def name_of(self, policy: PolicyT_contra) -> str:
        """A short name of the policy for tables."""
