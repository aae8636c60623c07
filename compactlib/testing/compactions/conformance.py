"""What every `contract.Compaction` has to do, as tests that any implementation can inherit.

    from compactlib.testing import CompactionConformance, CompactionFactory

    class MyStores(CompactionFactory):
        def open(self, folder, *, files): return MyStore(folder, files=files)
        def fill(self, store, number): return store.put(...)        # what is acknowledged
        def check(self, store, acknowledged): ...                   # it is all there
        def policy(self): return MyPolicy()

    class TestMyStore(CompactionConformance):
        def make_factory(self):
            return MyStores()

pytest collects the inherited methods; without pytest, `check_compaction` runs them one after the other.
"""

from __future__ import annotations

from pathlib import Path

from compactlib.testing.compactions.disks import DiskPromises
from compactlib.testing.compactions.edges import EdgePromises
from compactlib.testing.compactions.factory import CompactionFactory
from compactlib.testing.compactions.plans import PlanPromises
from compactlib.testing.compactions.runs import RunPromises
from compactlib.testing.kit.conformance import run_kit

__all__ = ["CompactionConformance", "check_compaction"]


class CompactionConformance(DiskPromises, EdgePromises, RunPromises, PlanPromises):
    """Inherit in a test class, say how stores are made, and pytest finds the rest."""


def check_compaction(factory: CompactionFactory, folder: Path, *, effort_percent: int = 100) -> list[str]:
    """Run the whole suite without pytest; the names of the tests that were passed.

    Args:
        factory: opens and fills stores of one kind.
        folder: an empty folder that exists; each test gets a folder of its own inside.
        effort_percent: how many of the steps of a compaction to try, where each is tried; 100 takes some seconds.

    Raises:
        PromiseBroken: the store does not do what a test demands; the message says what, and what to do.
    """
    suite = CompactionConformance()
    suite.make_factory = lambda: factory  # type: ignore[method-assign]
    suite.effort_percent = effort_percent
    return run_kit(suite, folder)
