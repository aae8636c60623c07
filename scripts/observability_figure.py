# SPDX-License-Identifier: Apache-2.0
"""Draw `docs/figures/observability.svg`: the numbers of a Raft log and a blob store that are overwritten.

Real stores in a temporary folder, under a clock that this script moves and with a fixed seed: a run gives the same
picture again. Needs matplotlib.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

from compactlib.blobstore import BlobStore, BlobStoreConfig, Greedy
from compactlib.clock import ManualClock
from compactlib.raftlog import DeadRatio, LogOptions, SeedPolicy, SegmentLimits, SegmentLog
from compactlib.runtime import Observer

matplotlib.use("svg")
from matplotlib import pyplot

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "observability.svg"
SECONDS = 3600
STEP = 30
KEYS = 400
COLOURS = {"raftlog": "tab:blue", "blobstore": "tab:orange"}


class Series(Observer):
    """Keeps each level and each sum with its time."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._sums: dict[tuple[str, str], float] = defaultdict(float)
        self.points: dict[tuple[str, str], list[tuple[float, float | None]]] = defaultdict(list)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        told = dict(labels or {})
        key = f"{name} {told['outcome']}" if "outcome" in told else name, told.get("kind", "")
        self._sums[key] += value
        self.points[key].append((self._clock.now() / 60, self._sums[key]))

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        if "value" in fields:
            self.points[name, fields.get("kind", "")].append((self._clock.now() / 60, fields["value"]))


def write_log(log: SegmentLog, rng: random.Random, newest: dict[int, int]) -> None:
    """Two hundred overwrites, then a snapshot of the newest of each key."""
    for _ in range(200):
        index = (log.last_index or 0) + 1
        newest[rng.randrange(KEYS)] = index
        log.append(index, 1, bytes(1000))
    log.sync()
    log.record_snapshot(log.last_index or 0, live=sorted(newest.values()))
    log.compact()


def write_blobs(store: BlobStore, rng: random.Random, step: int) -> None:
    """Blobs that live between one and ten minutes."""
    for number in range(100):
        store.put(b"%06d-%03d" % (step, number), bytes(1000), ttl_seconds=rng.uniform(60, 600))
    store.compact()


def run(folder: Path, clock: ManualClock, series: Series) -> None:
    """An hour of both stores."""
    rng, newest = random.Random(7), dict[int, int]()
    options = LogOptions(limits=SegmentLimits(max_entries=500), policy=SeedPolicy(), trigger=DeadRatio(), clock=clock,
                         observer=series)
    config = BlobStoreConfig(capacity_bytes=64 * 65_536, segment_bytes=65_536, durability="interval",
                             journal_max_entries=0, max_blob_bytes=0, deleted_retention_seconds=0.0,
                             stats_entries_per_second=None)
    with SegmentLog(folder / "log", options) as log, BlobStore(
            folder / "blobs", config, policy=Greedy(min_used_fraction=0.5), clock=clock,
            observer=series) as store:
        for step in range(SECONDS // STEP):
            write_log(log, rng, newest)
            write_blobs(store, rng, step)
            clock.advance(STEP)


def draw(series: Series, path: Path) -> None:
    """Four plots, one above the other."""
    matplotlib.rcParams["svg.hashsalt"] = "compactlib"
    figure, axes = pyplot.subplots(4, 1, sharex=True, figsize=(9, 9), layout="constrained")

    def line(plot: Any, name: str, kind: str, style: str, scale: Callable[[float, float], float]) -> None:
        points = [(at, scale(at, value)) for at, value in series.points[name, kind] if value is not None]
        plot.plot(*zip(*points, strict=True), style, color=COLOURS[kind], drawstyle="steps-post",
                  label=f"{kind} {name.removeprefix('store_')}")

    for kind in COLOURS:
        for name, style in (("store_live_bytes", "-"), ("store_dead_bytes", ":")):
            line(axes[0], name, kind, style, lambda at, value: value / 1e6)
        for name, style in (("store_copied_bytes", "-"), ("store_freed_bytes", ":")):
            line(axes[1], name, kind, style, lambda at, value: value / 1e6)
        for name, style in (("store_compactions done", "-"), ("store_compactions skipped", ":")):
            line(axes[2], name, kind, style, lambda at, value: value)
    line(axes[3], "store_oldest_unreclaimed_seconds", "blobstore", "-", lambda at, value: max(0.0, at - value / 60))
    for plot, title in zip(axes, ("MB", "MB in all", "compactions", "age, minutes"), strict=True):
        plot.set_ylabel(title)
        plot.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
        plot.grid(alpha=0.3)
    axes[-1].set_xlabel("minutes")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Run the stores, and draw what they told."""
    clock = ManualClock(0.0)
    series = Series(clock)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), clock, series)
    draw(series, FIGURE)
    print(FIGURE)


if __name__ == "__main__":
    main()
